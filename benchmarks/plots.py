"""Draws the figures that `run.py` stored as SVG files; the same figures give the same files.

    python benchmarks/plots.py [RESULTS] [--out docs/plots]

Of each label the newest run counts. A chart without figures is not written.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections import defaultdict
from pathlib import Path
from xml.sax.saxutils import escape

from report import STORED, Line, read

Chart = dict[str, dict[str, float]]  # series -> place on the x axis -> value
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 380, 72, 16, 76, 56
COLOURS = ("#2f81f7", "#e8862e", "#2ea36b", "#a371f7", "#d6467a", "#8a949e")
GREY = "#7a848e"  # this and the colours can be read on light and on dark pages
SETTINGS = {"default": "as it comes", "low": "low latency"}
RATES = {
    "W1": "a Python function with value state, 100,000 keys",
    "W2": "a built-in running sum, 100,000 keys",
    "W11": "Kafka to Kafka, exactly once",
}
SAVEPOINTS = {"full": "full_checkpoint_s"} | {name: f"{name}_s" for name in ("increment", "native", "canonical")}
SAVEPOINTS |= {f"from {name}": f"{name}_restore_s" for name in ("increment", "native", "canonical")}
STYLE = f"text{{font:13px sans-serif;fill:{GREY}}}.title{{font-size:16px;font-weight:600}}.small{{font-size:10px}}"


def short(value: float) -> str:
    """A figure in few signs."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.0f}{unit}" if value >= 10 * size else f"{value / size:.2g}{unit}"
    return f"{value:.3g}"


def steps(values: list[float], log: bool) -> list[float]:
    """Round figures for the y axis, which hold all values between them."""
    if log:
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return [10.0**power for power in range(first, max(last, first + 1) + 1)]
    size = 10 ** math.floor(math.log10(max(values) / 5))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= max(values) / 5)
    return [step * number for number in range(math.ceil(max(values) / step) + 1)]


def text(x: float, y: float, words: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(words)}</text>'


def draw(title: str, x_label: str, chart: Chart, bars: bool, log: bool) -> str:
    """Lines with a point at each place, or groups of bars."""
    places = list(dict.fromkeys(place for series in chart.values() for place in series))
    places = sorted(places, key=int) if places[0].isdecimal() else places
    ticks = steps([value for series in chart.values() for value in series.values()], log)
    scale = math.log10 if log else float
    low, high = scale(ticks[0]), scale(ticks[-1])
    slot = (WIDTH - LEFT - RIGHT) / len(places)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (scale(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [text(LEFT, 24, title, "start", "title")]
    for tick in ticks:
        parts.append(f'<path d="M{LEFT} {y_of(tick):.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity="0.3"/>')
        parts.append(text(LEFT - 8, y_of(tick) + 4, short(tick), "end"))
    shown = [f"{int(place):,}" if place.isdecimal() else place for place in places]
    kind = "" if 8 * max(map(len, shown)) < slot else "small"
    parts += [text(LEFT + slot * (n + 0.5), HEIGHT - BOTTOM + 20, name, kind=kind) for n, name in enumerate(shown)]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label))
    legend, row = float(LEFT), 40
    for number, (name, series) in enumerate(chart.items()):
        colour = COLOURS[number % len(COLOURS)]
        needed = 40 + 7.2 * len(name)
        if legend + needed > WIDTH:
            legend, row = float(LEFT), row + 18
        parts.append(f'<rect x="{legend:.1f}" y="{row}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(text(legend + 18, row + 11, name, "start"))
        legend += needed
        width = slot * 0.9 / len(chart)
        points = []
        for place, value in sorted(series.items(), key=lambda item: places.index(item[0])):
            x, y = LEFT + slot * (places.index(place) + 0.5), y_of(value)
            if bars:
                x += (number - len(chart) / 2) * width
                size = f'width="{width - 2:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
                parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="2" fill="{colour}"/>')
                parts.append(text(x + width / 2 - 1, y - 4, short(value), kind="small"))
            else:
                points.append(f"{x:.1f} {y:.1f}")
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        if len(points) > 1:
            parts.append(f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title><style>{STYLE}</style>", *parts, "</svg>", ""])


def medians(results: list[Line], pattern: str, figure: str) -> dict[tuple[str, ...], float]:
    """The median of a figure, by what a pattern finds in labels."""
    found: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for line in results:
        if (match := re.fullmatch(pattern, line["label"])) and line.get(figure):
            found[match.groups()].append(float(line[figure]))
    return {key: statistics.median(values) for key, values in found.items()}


def charted(figures: dict[tuple[str, ...], float], series: int = 0, place: int = 1) -> Chart:
    """Figures as series, our own first; of several with the same name and place the highest one is shown."""
    chart: Chart = defaultdict(dict)
    for key, value in figures.items():
        chart[key[series]][key[place]] = max(value, chart[key[series]].get(key[place], 0.0))
    return dict(sorted(chart.items(), key=lambda item: (not item[0].startswith("headrace"), item[0])))


def charts(results: list[Line]) -> dict[str, str]:
    """The drawings by the names of their files."""
    wanted: dict[str, tuple[str, str, Chart, bool, bool]] = {}
    for work, what in RATES.items():
        rates = medians(results, rf"{work} ((?!then ).*)", "records_per_s")
        rates = dict(sorted(rates.items(), key=lambda one: one[1], reverse=True))
        chart = {"records a second": {name.replace(" groupBy", ""): rate for (name,), rate in rates.items()}}
        wanted[work] = (f"{work}: {what}", "", chart if rates else {}, True, False)
    found = medians(results, r"shape (\w+) (headrace \w+|bytewax|pyflink)(.*)", "records_per_s")
    wanted["shapes"] = ("W1 in six shapes: records a second", "shape of the state", charted(found, 1, 0), True, False)
    for name, figure, title in (("cores", "cores", "Cores in use"), ("latency", "p99_ms", "Latency, 99 %, in ms")):
        both = medians(results, r"W4 (\w+) (headrace|pyflink|flink) (\d+)", figure)
        chart = charted({(f"{who}, {SETTINGS[how]}", rate): value for (how, who, rate), value in both.items()})
        wanted[name] = (f"W4: {title}, by rate", "records a second", chart, False, True)
    for name in ("keys", "parallelism"):
        chart = charted(medians(results, rf"W9 headrace (\w+) {name} (\d+)", "records_per_s"))
        for series in chart.values() if name == "keys" else ():
            first = series[min(series, key=int)]
            series.update({place: first / rate for place, rate in series.items()})
        what = "cost of a record, relative to the fewest keys" if name == "keys" else "records a second"
        wanted[name] = (f"W9: {what}", name, chart, False, False)
    for keys in sorted({keys for (keys,) in medians(results, r"W5 headrace \w+ (\d+)", "native_s")}, key=int):
        times = {place: medians(results, rf"W5 headrace (\w+) {keys}", figure) for place, figure in SAVEPOINTS.items()}
        chart = charted({(*key, place): value for place, some in times.items() for key, value in some.items()})
        title = f"W5: seconds for checkpoints, savepoints and restores of {int(keys):,} keys"
        wanted[f"savepoints-{keys}"] = (title, "taken, and restored from", chart, True, False)
    return {name: draw(*drawing) for name, drawing in wanted.items() if drawing[2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=STORED)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "plots")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for name, drawing in charts(read(a.results)).items():
        (a.out / f"{name}.svg").write_text(drawing)
        print(a.out / f"{name}.svg")


if __name__ == "__main__":
    main()
