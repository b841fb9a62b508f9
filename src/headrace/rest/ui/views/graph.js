// The job graph: what each vertex does with its time, how much passes, how far event time has come.
// A vertex shows its load, as in Flink; an edge is the wider the more its sender waits for it, as in RisingWave.

import { bytes, compact, count, duration, isEndOfInput, percent, rate, watermark } from "../format.js";
import { html, useMemo } from "../html.js";
import { layout } from "../layout.js";
import { useWidth } from "../live.js";
import { Load, LoadLegend, Panel, Sparkline, Status, Table } from "../parts.js";

// From left to right if there is room for that, else from top to bottom, which a page scrolls by itself.
const SHAPES = [
  { isVertical: false, width: 236, height: 144, gapAlong: 96, gapAcross: 24 },
  { isVertical: false, width: 206, height: 144, gapAlong: 64, gapAcross: 18 },
  { isVertical: true, width: 236, height: 144, gapAlong: 50, gapAcross: 24 },
  { isVertical: true, width: 148, height: 168, gapAlong: 42, gapAcross: 12, isSmall: true },
];

const LONG_AGO_MS = 30 * 86_400_000;

export function Graph({ feed }) {
  const { job, loads } = feed;
  const [ref, width] = useWidth();
  const nodes = job.plan?.nodes ?? job.vertices;
  const shape = nodes.map((node) => `${node.id}<${(node.inputs ?? []).map((input) => input.id)}`).join();
  const plans = useMemo(() => SHAPES.map((one) => drawing(nodes, one)), [shape]);
  const plan = plans.find((one) => one.width <= width) ?? plans.toSorted((a, b) => a.width - b.width)[0];
  return html`
    <${Panel} id="graph" title="Job graph" extra=${html`<${LoadLegend} />`}>
      <div ref=${ref} class="scroll" role="group" aria-label="Job graph" tabindex="0">
        <div class="graph" style=${{ width: `${plan.width}px`, height: `${plan.height}px` }}>
          <svg width=${plan.width} height=${plan.height} aria-hidden="true">
            ${plan.lines.map(
              (line) =>
                html`<path key=${line.key} d=${line.path} class=${edgeClass(loads.get(line.from))}
                style=${{ strokeWidth: `${1.5 + 5 * (loads.get(line.from)?.backPressured ?? 0)}px` }} />`,
            )}
          </svg>
          ${plan.lines.map(
            (line) =>
              html`<a key=${line.key} class="edge" style=${{ left: `${line.label.x}px`, top: `${line.label.y}px` }}
              href=${`#/jobs/${job.jid}/vertices/${line.from}/sample`} title="See records that are sent here">
                ${line.strategy}</a>`,
          )}
          <ol>${job.vertices.map(
            (vertex) =>
              plan.at.has(vertex.id) &&
              html`<${Node} key=${vertex.id} jid=${job.jid} vertex=${vertex} load=${loads.get(vertex.id)}
              at=${plan.at.get(vertex.id)} isSource=${!plan.readers.has(vertex.id)} />`,
          )}</ol>
        </div>
      </div>
    <//>
    <${Panel} id="vertices" title="Vertices"><${Vertices} job=${job} loads=${loads} /><//>
  `;
}

const edgeClass = (load) => (load?.backPressured > 0.5 ? "high" : load?.backPressured > 0.1 ? "some" : "");

function drawing(nodes, { isVertical, width, height, gapAlong, gapAcross, isSmall = false }) {
  const [along, across] = isVertical ? [height, width] : [width, height];
  const edges = nodes.flatMap((to) =>
    (to.inputs ?? []).map((input) => ({
      from: input.id,
      to: to.id,
      strategy: String(input.ship_strategy ?? "sends").toLowerCase(),
    })),
  );
  const found = layout(nodes, edges, { along, across, gapAlong, gapAcross });
  const turn = (point) => (isVertical ? { x: point.across, y: point.along } : { x: point.along, y: point.across });
  return {
    ...(isVertical ? { width: found.across, height: found.along } : { width: found.along, height: found.across }),
    at: new Map([...found.at].map(([id, point]) => [id, { ...turn(point), width, height, isSmall }])),
    readers: new Set(edges.map((edge) => edge.to)),
    lines: found.lines.map((line, i) => ({
      ...line,
      key: `${line.from}-${line.to}-${i}`,
      ...curve(line.points.map(turn), along / 2, isVertical),
    })),
  };
}

// A curve from the border of a vertex through the places of its edge to the next vertex; its label is in the first gap.
function curve(points, half, isVertical) {
  const way = isVertical ? "y" : "x";
  const line = points.flatMap((point, i) => {
    const [before, behind] = [
      { ...point, [way]: point[way] - half },
      { ...point, [way]: point[way] + half },
    ];
    return i === 0 ? [behind] : i === points.length - 1 ? [before] : [before, behind];
  });
  let path = `M${line[0].x} ${line[0].y}`;
  for (let i = 1; i < line.length; i += 1) {
    const [a, b] = [line[i - 1], line[i]];
    const middle = (a[way] + b[way]) / 2;
    if (i % 2 === 0) path += `L${b.x} ${b.y}`;
    else
      path += isVertical
        ? `C${a.x} ${middle} ${b.x} ${middle} ${b.x} ${b.y}`
        : `C${middle} ${a.y} ${middle} ${b.y} ${b.x} ${b.y}`;
  }
  return { path, label: { x: (line[0].x + line[1].x) / 2, y: (line[0].y + line[1].y) / 2 } };
}

function Node({ jid, vertex, load = {}, at, isSource }) {
  const tone = load.backPressured > 0.5 ? "waits" : load.busiest > 0.8 ? "hot" : load.busiest > 0.4 ? "warm" : "";
  return html`
    <li
      style=${{
        left: `${at.x - at.width / 2}px`,
        top: `${at.y - at.height / 2}px`,
        width: `${at.width}px`,
        height: `${at.height}px`,
      }}>
      <a class=${`node ${tone} ${at.isSmall ? "small" : ""}`} href=${`#/jobs/${jid}/vertices/${vertex.id}`}>
        <span class="name">${vertex.name.replaceAll(" -> ", " → ")}</span>
        <span class="times">×${vertex.parallelism}</span>
        <span class="work"><${Load} of=${load} /></span>
        <span class="flow">
        ${!isSource && html`<span>in ${rate(load.read)}</span>`}${
          (isSource || load.written > 0) && html`<span>out ${rate(load.written)}</span>`
        }</span>
        <span class="lag">${lag(load)}</span>
      </a>
    </li>
  `;
}

// Of a source whose records carry times of long ago, the clock itself says more than how far it is behind.
function lag({ watermark: clock, lag: behind }) {
  if (clock === null || clock === undefined) return "";
  if (isEndOfInput(clock)) return "end of input";
  return behind > LONG_AGO_MS ? `watermark ${watermark(clock)}` : `watermark ${duration(Math.max(0, behind))} behind`;
}

const of = (vertex, name) => vertex.metrics?.[name] ?? null;
const Total = ({ vertex, way }) =>
  html`<span title=${`${count(of(vertex, `${way}-records`))} records, ${bytes(of(vertex, `${way}-bytes`))}`}>
    ${compact(of(vertex, `${way}-records`))}</span>`;

function columns(job, loads) {
  const load = (vertex) => loads.get(vertex.id) ?? {};
  return [
    {
      label: "Name",
      value: (one) => one.name,
      cell: (one) => html`<a class="name" href=${`#/jobs/${job.jid}/vertices/${one.id}`}>${one.name}</a>`,
    },
    { label: "Status", value: (one) => one.status, cell: (one) => html`<${Status} of=${one.status} />` },
    { label: "Parallelism", value: (one) => one.parallelism, numeric: true },
    {
      label: "Busy",
      value: (one) => load(one).busy ?? null,
      cell: (one) => html`<${Load} of=${load(one)} text=${false} /> ${percent(load(one).busy)}`,
      numeric: true,
    },
    {
      label: "Busiest",
      value: (one) => load(one).busiest ?? null,
      cell: (one) => percent(load(one).busiest),
      numeric: true,
    },
    {
      label: "Back-pressured",
      value: (one) => load(one).backPressured ?? null,
      cell: (one) => percent(load(one).backPressured),
      numeric: true,
    },
    { label: "Trend", cell: (one) => html`<${Sparkline} of=${load(one).trend ?? []} />` },
    { label: "Receives", value: (one) => load(one).read ?? null, cell: (one) => rate(load(one).read), numeric: true },
    {
      label: "Sends",
      value: (one) => load(one).written ?? null,
      cell: (one) => rate(load(one).written),
      numeric: true,
    },
    {
      label: "Received",
      value: (one) => of(one, "read-records"),
      cell: (one) => html`<${Total} vertex=${one} way="read" />`,
      numeric: true,
    },
    {
      label: "Sent",
      value: (one) => of(one, "write-records"),
      cell: (one) => html`<${Total} vertex=${one} way="write" />`,
      numeric: true,
    },
    {
      label: "Watermark",
      value: (one) => load(one).watermark ?? null,
      cell: (one) => watermark(load(one).watermark),
      numeric: true,
    },
    { label: "Lag", value: (one) => load(one).lag ?? null, cell: (one) => duration(load(one).lag), numeric: true },
  ];
}

function Vertices({ job, loads }) {
  return html`<${Table} label="Vertices" rows=${job.vertices} columns=${columns(job, loads)} id=${(vertex) => vertex.id}
    none="The job has no vertices yet." />`;
}
