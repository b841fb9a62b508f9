// One vertex: its subtasks, how evenly they work, what it sends, where its time goes.

import { bytes, compact, count, percent, plural, rate, watermark } from "../format.js";
import { html, useState } from "../html.js";
import { useDocument } from "../live.js";
import { loadOf } from "../load.js";
import { Empty, External, Facts, Load, LoadLegend, Panel, Problem, Status, Table, Text, Waiting } from "../parts.js";
import { path } from "../rest.js";

const EVERY_MS = 2_000;

export function Vertex({ feed, id, part }) {
  const { job } = feed;
  const vertex = job.vertices.find((one) => one.id === id);
  if (!vertex) return html`<${Empty}>The job has no vertex ${id}.<//>`;
  const plan = job.plan?.nodes?.find((node) => node.id === id);
  const name = (other) => job.vertices.find((one) => one.id === other)?.name ?? other;
  const isSample = part === "sample"; // it was an edge that led here
  const sample = html`<${Sample} jid=${job.jid} id=${id} isAsked=${isSample} />`;
  return html`
    <p class="crumb"><a href=${`#/jobs/${job.jid}`}>Job graph</a></p>
    <h2 class="title">${vertex.name}</h2>
    <${Facts} of=${[
      ["Status", html`<${Status} of=${vertex.status} />`],
      ["Parallelism", `${vertex.parallelism} of at most ${vertex.maxParallelism}`],
      ["Load", html`<${Load} of=${feed.loads.get(id)} />`],
      plan?.inputs?.length && [
        "Reads from",
        html`${plan.inputs.map(
          (input, i) =>
            html`${i > 0 && ", "}<a href=${`#/jobs/${job.jid}/vertices/${input.id}`}>${name(input.id)}
            </a> (${String(input.ship_strategy).toLowerCase()})`,
        )}`,
      ],
      plan?.operators?.length && ["Operators", html`<${Chain} of=${plan.operators} />`],
      ["Id", html`<code>${id}</code>`],
      vertex["spark-stage"] && ["Spark", html`<${External} href=${vertex["spark-stage"]}>Stage in the Spark UI<//>`],
    ]} />
    ${isSample && sample}
    <${Subtasks} jid=${job.jid} vertex=${vertex} />
    ${!isSample && sample}
    <${Flames} jid=${job.jid} id=${id} />
  `;
}

// The chained operators, each with the line of the program that made it.
function Chain({ of }) {
  return html`<ol class="chain">
    ${of.map(
      (one) =>
        html`<li key=${one.id}>${one.name}${one.uid && html` <code>${one.uid}</code>`} <span class="quiet">
        ${one["call-site"]}</span></li>`,
    )}</ol>`;
}

const row = (subtask) => ({
  ...subtask,
  load: loadOf(subtask),
  read: subtask.metrics["read-records"],
  written: subtask.metrics["write-records"],
});

function Subtasks({ jid, vertex }) {
  const found = useDocument(path`/jobs/${jid}/vertices/${vertex.id}`, vertex.parallelism, EVERY_MS);
  return html`
    <${Panel} id="subtasks" title="Subtasks" extra=${html`<${LoadLegend} />`}>
      <${Waiting} of=${found}>${(data) => {
        const rows = data.subtasks.map(row);
        const most = Math.max(1, ...rows.map((one) => Math.max(one.read, one.written)));
        return html`<${Skew} rows=${rows} />
          <${Table} label="Subtasks" rows=${rows} columns=${columns(most)} id=${(one) => one.subtask} />`;
      }}<//>
    <//>
  `;
}

function Skew({ rows }) {
  const values = rows.map((row) => row.read || row.written);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length < 2 || !mean) return null;
  const most = Math.max(...values);
  const { subtask } = rows[values.indexOf(most)];
  const text = `Subtask ${subtask} has ${compact(most)} records, ${(most / mean).toFixed(1)} times the mean`;
  return html`<p class=${most > 2 * mean ? "hint warn" : "hint"}>${text} of ${compact(mean)}.</p>`;
}

const Bar = ({ value, most, text }) =>
  html`<span class="bar" aria-hidden="true"><i style=${{ width: `${(100 * value) / most}%` }}></i></span>${text}`;

const columns = (most) => [
  { label: "Subtask", value: (row) => row.subtask, numeric: true },
  { label: "Status", value: (row) => row.status, cell: (row) => html`<${Status} of=${row.status} />` },
  {
    label: "Busy",
    value: (row) => row.load.busy ?? null,
    cell: (row) => html`<${Load} of=${row.load} text=${false} /> ${percent(row.load.busy)}`,
    numeric: true,
  },
  {
    label: "Back-pressured",
    value: (row) => row.load.backPressured ?? null,
    cell: (row) => percent(row.load.backPressured),
    numeric: true,
  },
  { label: "Receives", value: (row) => row.load.read ?? null, cell: (row) => rate(row.load.read), numeric: true },
  {
    label: "Received",
    value: (row) => row.read,
    cell: (row) => html`<${Bar} value=${row.read} most=${most} text=${count(row.read)} />`,
    numeric: true,
  },
  {
    label: "Sent",
    value: (row) => row.written,
    cell: (row) => html`<${Bar} value=${row.written} most=${most} text=${count(row.written)} />`,
    numeric: true,
  },
  {
    label: "Bytes in",
    value: (row) => row.metrics["read-bytes"],
    cell: (row) => bytes(row.metrics["read-bytes"]),
    numeric: true,
  },
  {
    label: "Bytes out",
    value: (row) => row.metrics["write-bytes"],
    cell: (row) => bytes(row.metrics["write-bytes"]),
    numeric: true,
  },
  {
    label: "Queued",
    value: (row) => row.metrics["queued-bytes"] ?? null,
    cell: (row) => bytes(row.metrics["queued-bytes"]),
    numeric: true,
  },
  {
    label: "Spilled",
    value: (row) => row.metrics["spilled-bytes"] ?? null,
    cell: (row) => bytes(row.metrics["spilled-bytes"]),
    numeric: true,
  },
  {
    label: "Watermark",
    value: (row) => row.load.watermark,
    cell: (row) => watermark(row.load.watermark),
    numeric: true,
  },
  { label: "Attempt", value: (row) => row.attempt ?? 0, numeric: true },
  { label: "Host", value: (row) => row.endpoint ?? row.host ?? "", cell: (row) => row.endpoint ?? row.host ?? "–" },
];

const NO_ANSWER = "The subtasks are too busy to answer; ask again in a few seconds.";

function Sample({ jid, id, isAsked }) {
  const [asked, setAsked] = useState(isAsked ? 1 : 0);
  const found = useDocument(asked ? `${path`/jobs/${jid}/vertices/${id}/sample`}?records=20` : null, asked);
  return html`
    <${Panel} id="sample" title="Data sample" hint="What this vertex has sent most recently, as Python prints it."
      extra=${html`<button onClick=${() => setAsked(asked + 1)}>${asked ? "Sample again" : "Take a sample"}</button>`}>
      ${
        asked > 0 &&
        html`<${Waiting} of=${found}>
          ${({ records, missing_subtasks: missing }) =>
            records.length
              ? html`<ol class="records">${records.map((text, i) => html`<li key=${i}><${Text}>${text}<//></li>`)}</ol>`
              : html`<${Empty}>${missing ? NO_ANSWER : "The vertex has sent nothing yet."}<//>`}<//>`
      }
    <//>
  `;
}

// ---- flame graph ----------------------------------------------------------------------------------------------------

const DEEPEST = 40;

function Flames({ jid, id }) {
  const [asked, setAsked] = useState(0);
  const found = useDocument(asked ? path`/jobs/${jid}/vertices/${id}/flamegraph` : null, asked);
  return html`
    <${Panel} id="flames" title="Flame graph" hint="Where the Python code of this vertex spends its time. A bar is as
      wide as the share of samples that it is in."
      extra=${html`<button onClick=${() => setAsked(asked + 1)}>${asked ? "Sample again" : "Sample the stacks"}
        </button>`}>
      ${
        asked > 0 &&
        html`
        <${Problem} error=${found.error} />
        ${!found.data && !found.error && html`<p class="quiet" role="status">The workers are being sampled.</p>`}
        ${
          found.data &&
          (found.data.data?.value
            ? html`<${Flame} root=${found.data.data} />`
            : html`<${Empty}>${found.data.missingSubtasks ? NO_ANSWER : "No thread of the vertex runs now."}<//>`)
        }
      `
      }
    <//>
  `;
}

// Below the frames that all samples share: the loop of the worker, which says nothing about the vertex.
function Flame({ root }) {
  const [top, setTop] = useState(null); // the frame that fills the width
  const shown = top ?? trunk(root);
  return html`
    <p class="hint">${shown !== root && html`Frames above ${shown.name} are left out. `}
      ${top && html`<button class="small" onClick=${() => setTop(null)}>Whole graph</button>`}</p>
    <div class="scroll" role="group" aria-label="Flame graph" tabindex="0">
      <${Frame} frame=${shown} total=${root.value} depth=${0} setTop=${setTop} />
    </div>
  `;
}

export function trunk(frame) {
  while (frame.children?.length === 1 && frame.children[0].value === frame.value) frame = frame.children[0];
  return frame;
}

function Frame({ frame, total, depth, setTop }) {
  const text = `${frame.name}: ${plural(frame.value, "sample")}, ${percent(frame.value / total)}`;
  const rest = frame.value - (frame.children ?? []).reduce((sum, child) => sum + child.value, 0);
  return html`
    <div class="frame" style=${{ flexGrow: frame.value }}>
      <button title=${text} aria-label=${text} onClick=${() => setTop(frame)}>${frame.name}</button>
      ${
        depth < DEEPEST &&
        frame.children?.length > 0 &&
        html`<div class="frames">
        ${frame.children
          .filter((child) => child.value / total > 0.002)
          .map(
            (child, i) => html`<${Frame} key=${i} frame=${child} total=${total} depth=${depth + 1} setTop=${setTop} />`,
          )}
        ${rest > 0 && html`<div style=${{ flexGrow: rest }}></div>`}
      </div>`
      }
    </div>
  `;
}
