"""Medians, ratios and intervals of the figures that `run.py` stored.

    python benchmarks/report.py [RESULTS]

Of each label the newest run counts. A ratio is the median over rounds of the ratios within a round, since engines take
turns; figures of different runs are not compared.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

STORED = Path.home() / ".cache" / "headrace-bench" / "results.jsonl"
Line = dict[str, Any]
RATES = ("records_per_s", "events_per_second", "filled_per_second", "fired_per_second", "first_visible_s")
LOAD = ("cores", "p50_ms", "p99_ms", "cpu_s_per_million", "bytes_each", "checkpoint_s", "restore_s", "duration_s")
SAVEPOINTS = ("start_s", "fill_s", "first_record_s")
KINDS = ("full_checkpoint", "increment", "native", "canonical")
SAVEPOINTS += tuple(f"{kind}{what}" for kind in KINDS for what in ("_s", "_mb", "_restore_s"))
FIGURES = (*RATES, *LOAD, *SAVEPOINTS)
LOWER_IS_BETTER = ("cores", "p99_ms")
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t, 95 %, by degrees of freedom


def newest(results: list[Line]) -> list[Line]:
    """The lines of the newest run of each label."""
    last = {line["label"]: line["run"] for line in results}
    return [line for line in results if line["run"] == last[line["label"]]]


def medians(results: list[Line]) -> list[str]:
    """A line for each label: the medians of what was measured, or why nothing was."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in results:
        found[line["label"]].append(line)
    shown = []
    for label, lines in found.items():
        values = {name: [line[name] for line in lines if line.get(name) is not None] for name in FIGURES}
        texts = [f"{name} {_short(statistics.median(some))}" for name, some in values.items() if some]
        texts += sorted({str(line.get("notes")) for line in lines if not any(name in line for name in FIGURES)})
        shown.append(f"{label:44} {len(lines):2} runs  {', '.join(texts)}")
    return shown


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ratio(above: list[Line], below: list[Line], name: str) -> float | None:
    """The median over rounds of one figure by the other; None if no round has both."""
    theirs = {(line["run"], line["round"]): line[name] for line in below if line.get(name)}
    mine = {(line["run"], line["round"]): line[name] for line in above if line.get(name)}
    pairs = [mine[place] / theirs[place] for place in mine if place in theirs]
    return statistics.median(pairs) if pairs else None


def ratios(results: list[Line]) -> list[str]:
    """In each group: ours by each peer's best, rocksdb by hashmap, now by then; of one engine alone, relative costs."""
    groups: dict[str, dict[str, dict[str, list[Line]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for line in results:
        if any(line.get(name) for name in ("records_per_s", *LOWER_IS_BETTER)):
            groups[line["group"]][line["engine"]][line["label"]].append(line)
    shown = []
    for group, engines in groups.items():
        if group.startswith("shape "):
            engines |= groups.get("shapes", {})  # W1 then, which all shapes are compared with
        if len(engines) == 1:
            (labels,) = engines.values()
            shown += _costs(labels)
        else:
            shown += _beside(f"{group} ", engines, LOWER_IS_BETTER if group.startswith("W4") else ("records_per_s",))
    return shown


def _costs(labels: dict[str, list[Line]]) -> list[str]:
    """What a record costs, relative to the first label."""
    first, *others = labels
    found = {label: ratio(labels[first], labels[label], "records_per_s") for label in others}
    return [f"{label}: {cost:.2f} times the cost of {first}" for label, cost in found.items() if cost is not None]


def _beside(group: str, engines: dict[str, dict[str, list[Line]]], names: tuple[str, ...]) -> list[str]:
    """Our figures by those of others."""
    best = {engine: _best(labels) for engine, labels in engines.items()}
    pairs = [(mine, other) for mine in best for other in best if _compared(mine, other)]
    shown = []
    for (mine, other), name in itertools.product(pairs, names):
        found = ratio(engines[mine][best[mine]], engines[other][best[other]], name)
        shown += [] if found is None else [f"{best[mine]} / {best[other].removeprefix(group)}: {found:.2f} ({name})"]
    return shown


def _best(labels: dict[str, list[Line]]) -> str:
    """The label with the highest rate, if an engine has several in a group."""
    return max(labels, key=lambda label: statistics.median(line.get("records_per_s") or 0 for line in labels[label]))


def _compared(mine: str, other: str) -> bool:
    if not mine.startswith("headrace") or mine == other:
        return False
    if other.startswith("then "):
        return other == "then hashmap" or mine.split()[1] == other.split()[1]
    return not other.startswith("headrace") or (mine, other) == ("headrace rocksdb", "headrace hashmap")


def losses(results: list[Line]) -> list[str]:
    """What checkpoints cost, of interleaved pairs: the median, the mean and its 95 % interval; and how many there were.

    Once by the rates as they are, and once by rates at the same speed of the host.
    """
    found: dict[str, dict[str, dict[int, Line]]] = defaultdict(lambda: defaultdict(dict))
    for line in results:
        if line["group"].startswith("W3") and line.get("loop_us"):
            kind = line["checkpoint"]
            found[line["group"].removesuffix(f" {kind}")][kind][line["pair"]] = line
    shown = []
    for group, kinds in found.items():
        without = kinds.pop("none", {})
        for kind, lines in kinds.items():
            both = [(line, without[pair]) for pair, line in sorted(lines.items()) if pair in without]
            if both:
                count, seconds = (
                    statistics.median(line[n] for line, _ in both) for n in ("checkpoints", "checkpoint_s")
                )
                shown.append(f"{group} {kind}: {len(both)} pairs, {count:g} checkpoints of {seconds:.2g} s in a window")
                shown.append(f"    lost: {_loss([1 - _rate(line) / _rate(other) for line, other in both])}")
                even = [1 - _rate(line) * line["loop_us"] / _rate(other) / other["loop_us"] for line, other in both]
                shown.append(f"    lost, at the same speed of the host: {_loss(even)}")
    return shown


def _rate(line: Line) -> float:
    return float(line["records_per_s"])


def _loss(lost: list[float]) -> str:
    return f"median {statistics.median(lost):.1%}, mean {statistics.mean(lost):.1%}{_interval(lost)}"


def _interval(values: list[float]) -> str:
    freedom = len(values) - 1
    if freedom < 1:
        return ""
    t = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.7 / freedom
    half = t * statistics.stdev(values) / len(values) ** 0.5
    mean = statistics.mean(values)
    return f" (95 %: {mean - half:.1%} to {mean + half:.1%})"


def report(results: list[Line]) -> list[str]:
    """All of it."""
    lines = ["", "medians", *medians(results)]
    for title, found in (("ratios", ratios(results)), ("loss by checkpoints", losses(results))):
        lines += ["", title, *found] if found else []
    return lines


def read(path: Path) -> list[Line]:
    """The lines that count, of a file; those that `run.py` has not described are left out."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    return newest([line for line in lines if "run" in line])


def main() -> None:
    print("\n".join(report(read(Path(sys.argv[1]) if len(sys.argv) > 1 else STORED))))


if __name__ == "__main__":
    main()
