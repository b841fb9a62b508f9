// A line over time, as SVG: colours come from the style sheet, so that it follows the theme, and the values can be
// read with the arrow keys.

import { clock, day } from "./format.js";
import { html, useState } from "./html.js";
import { useWidth } from "./live.js";

const HEIGHT = 190;
const EDGE = { left: 64, right: 12, top: 10, bottom: 24 };

// Steps of counts: whole, round numbers up to at least `value`.
export function ticks(value, about = 4) {
  const step = 10 ** Math.max(0, Math.floor(Math.log10(value / about)));
  const nice = [1, 2, 5, 10].map((factor) => factor * step).find((one) => value / one <= about) ?? step * 10;
  const top = Math.ceil(value / nice - 1e-9) * nice;
  return Array.from({ length: Math.round(top / nice) + 1 }, (_, i) => i * nice);
}

// Steps of bytes are powers of two.
export function byteTicks(value, about = 4) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2(value / about)));
  return Array.from({ length: Math.ceil(value / step) + 1 }, (_, i) => i * step);
}

const DURATIONS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  900_000, 1_800_000,
];
const HOUR = 3_600_000;

// Steps of times are those of a clock.
export function durationTicks(value, about = 4) {
  const step = DURATIONS.find((one) => value / one <= about) ?? Math.ceil(value / about / HOUR) * HOUR;
  return Array.from({ length: Math.ceil(value / step) + 1 }, (_, i) => i * step);
}

function timeTicks(from, to, about) {
  const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400].map(
    (seconds) => seconds * 1000,
  );
  const step =
    steps.find((one) => (to - from) / one <= about) ?? Math.ceil((to - from) / about / 86_400_000) * 86_400_000;
  const offset = new Date(from).getTimezoneOffset() * 60_000; // so that steps fall on whole local hours
  const found = [];
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) found.push(at);
  return found.map((at) => [
    at,
    step >= 86_400_000 ? day(at).slice(5) : step >= 60_000 ? clock(at).slice(0, 5) : clock(at),
  ]);
}

// points: [{at, value, note?}] oldest first, a point with a note is marked. limit: {value, name}, drawn if it is near.
export function LineChart({ title, points, limit, format, steps: stepsOf = ticks, describe }) {
  const [ref, width] = useWidth();
  const [chosen, setChosen] = useState(null);
  if (!points.length)
    return html`<figure class="chart" ref=${ref}><figcaption>${title}</figcaption>
      <p class="quiet">There are no points yet.</p></figure>`;
  const greatest = Math.max(1, ...points.map((point) => point.value));
  const isNear = limit && limit.value <= greatest * 4;
  const steps = stepsOf(Math.max(greatest, isNear ? limit.value : 0));
  const [from, to] = [points[0].at, Math.max(points.at(-1).at, points[0].at + 1000)];
  const x = (at) => EDGE.left + ((at - from) / (to - from)) * (width - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - (value / steps.at(-1)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const line = points
    .map((point, i) => `${i ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`)
    .join("");
  const shown = points[Math.min(chosen ?? points.length - 1, points.length - 1)];
  const toNearest = (event) => {
    const at =
      from +
      ((event.clientX - event.currentTarget.getBoundingClientRect().left - EDGE.left) /
        (width - EDGE.left - EDGE.right)) *
        (to - from);
    setChosen(nearest(points, at));
  };
  const toKey = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length }[event.key];
    if (!step) return;
    event.preventDefault();
    setChosen(Math.max(0, Math.min(points.length - 1, (chosen ?? points.length - 1) + step)));
  };
  const readout = describe(shown);
  return html`
    <figure class="chart" ref=${ref}>
      <figcaption><span>${title}</span> <output>${readout}</output>
      ${limit && !isNear && html` <small>limit ${format(limit.value)}, far above</small>`}</figcaption>
      <svg width=${width} height=${HEIGHT} tabindex="0" role="slider" aria-label=${`${title}, use the arrow keys`}
        aria-valuemin="0" aria-valuemax=${points.length - 1}
        aria-valuenow=${chosen ?? points.length - 1} aria-valuetext=${readout} onPointerMove=${toNearest}
          onPointerLeave=${() => setChosen(null)} onKeyDown=${toKey}>
        ${steps.map(
          (step) =>
            html`<g class="grid"><line x1=${EDGE.left} x2=${width - EDGE.right} y1=${y(step)} y2=${y(step)} />
            <text x=${EDGE.left - 6} y=${y(step) + 4} text-anchor="end">${format(step)}</text></g>`,
        )}
        ${timeTicks(from, to, Math.max(2, Math.floor(width / 120))).map(
          ([at, text]) =>
            html`<text class="tick" x=${Math.min(x(at), width - EDGE.right - 14)} y=${HEIGHT - 6} text-anchor="middle">
            ${text}</text>`,
        )}
        ${
          isNear &&
          html`<g class="limit">
            <line x1=${EDGE.left} x2=${width - EDGE.right} y1=${y(limit.value)} y2=${y(limit.value)} />
            <text x=${width - EDGE.right} y=${y(limit.value) + (y(limit.value) < EDGE.top + 12 ? 14 : -5)}
              text-anchor="end">${limit.name} ${format(limit.value)}</text></g>`
        }
        <path class="line" d=${line} />
        ${points
          .filter((point) => point.note)
          .map(
            (point) =>
              html`<circle class="noted" cx=${x(point.at)} cy=${y(point.value)} r="4"><title>${point.note}
            </title></circle>`,
          )}
        <g class="chosen">
        <line x1=${x(shown.at)} x2=${x(shown.at)} y1=${EDGE.top} y2=${HEIGHT - EDGE.bottom}
          class=${chosen === null ? "hidden-mark" : ""} /><circle cx=${x(shown.at)} cy=${y(shown.value)} r="3.5" /></g>
      </svg>
    </figure>
  `;
}

function nearest(points, at) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle].at < at) low = middle;
    else high = middle;
  }
  return at - points[low].at < points[high].at - at ? low : high;
}
