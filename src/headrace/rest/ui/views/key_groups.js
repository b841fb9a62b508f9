// The key-group map: for each keyed operator which subtask has which key groups, and how much lies in them.
// A bar is as wide as its share of the key groups and as high as its load, so skew stands out of the line of the mean.

import { bytes, compact, count, plural } from "../format.js";
import { html, pure, useState } from "../html.js";
import { useDocument, useWidth } from "../live.js";
import { Empty, Panel, Table, Waiting } from "../parts.js";
import { path } from "../rest.js";

const MEASURES = { bytes: ["Bytes of state", bytes], keys: ["Keys", compact], records: ["Records", compact] };
const HEIGHT = 56;
const SKEWED = 2; // times the mean
const HINT =
  "A bar is one subtask with its key groups; the line is the mean, and a subtask above twice the mean is marked.";

export function KeyGroups({ feed }) {
  const found = useDocument(path`/jobs/${feed.job.jid}/key-groups`, feed.changes);
  const [measure, setMeasure] = useState("bytes");
  const choice = html`<fieldset class="choice"><legend class="hidden">Height of the bars</legend>
    ${Object.entries(MEASURES).map(
      ([name, [label]]) =>
        html`<label>
        <input type="radio" name="measure" value=${name} checked=${measure === name}
          onChange=${() => setMeasure(name)} />${label}</label>`,
    )}</fieldset>`;
  return html`<${Waiting} of=${found}>${(data) => html`
    <${Panel} id="key-groups" title="Key groups" extra=${choice}
      hint=${`${plural(data.max_parallelism, "key group")}, from left to right. ${HINT}`}>
      ${
        data.operators.length
          ? data.operators.map(
              (operator) =>
                html`<${Operator} key=${operator.id} operator=${operator} groups=${data.max_parallelism}
            measure=${measure} />`,
            )
          : html`<${Empty}>No operator has keyed state.<//>`
      }
    <//>
  `}<//>`;
}

// How far the fullest subtask is above the mean; null without figures.
export function skew(subtasks, measure) {
  const values = subtasks.map((one) => one[measure]).filter((value) => value !== null && value !== undefined);
  const mean = values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  if (!mean) return null;
  const most = Math.max(...values);
  return { mean, most, times: most / mean, fullest: subtasks.find((one) => one[measure] === most).index };
}

const Operator = pure(({ operator, groups, measure }) => {
  const [ref, width] = useWidth();
  const [chosen, setChosen] = useState(null);
  const [isTable, setTable] = useState(false);
  const { subtasks } = operator;
  const found = skew(subtasks, measure);
  const format = MEASURES[measure][1];
  const x = (group) => (group / groups) * width;
  const y = (value) => HEIGHT - (found ? (value / found.most) * (HEIGHT - 4) : 0);
  const pick = (event) => {
    const group = ((event.clientX - event.currentTarget.getBoundingClientRect().left) / width) * groups;
    setChosen(subtasks.findIndex((one) => group >= one.first && group < one.last + 1));
  };
  const one = subtasks[chosen];
  const summary = found
    ? `fullest: subtask ${found.fullest} with ${format(found.most)}, ${found.times.toFixed(1)} times the mean`
    : "no figures yet";
  return html`
    <section class="lane" ref=${ref} aria-label=${`${operator.name}: ${summary}`}>
      <h3><span class="name">${operator.name}</span> <span class=${found?.times > SKEWED ? "warn" : "quiet"}>
      ${one ? `subtask ${one.index}, key groups ${one.first} to ${one.last}: ${format(one[measure])}` : summary}</span>
        <button class="small" aria-expanded=${isTable} onClick=${() => setTable(!isTable)}>
        ${isTable ? "Hide the table" : "As a table"}</button></h3>
      <svg class="groups" width=${width} height=${HEIGHT} aria-hidden="true" onPointerMove=${pick} onPointerDown=${pick}
        onPointerLeave=${() => setChosen(null)}>
        ${subtasks.map((part) => {
          const value = part[measure] ?? 0;
          const [left, wide] = [x(part.first), x(part.last + 1) - x(part.first)];
          return html`<g key=${part.index} class=${found && value > SKEWED * found.mean ? "skewed" : ""}>
            <rect class="room" x=${left} y="0" width=${Math.max(wide - 1, 0.5)} height=${HEIGHT} />
            <rect class="fill" x=${left} y=${y(value)} width=${Math.max(wide - 1, 0.5)}
              height=${HEIGHT - y(value)} /></g>`;
        })}
        ${found && html`<line class="mean" x1="0" x2=${width} y1=${y(found.mean)} y2=${y(found.mean)} />`}
      </svg>
      ${
        isTable &&
        html`<${Table} label=${`Key groups of ${operator.name}`} rows=${subtasks} columns=${COLUMNS}
          id=${(part) => part.index} />`
      }
    </section>
  `;
});

const COLUMNS = [
  { label: "Subtask", value: (one) => one.index, numeric: true },
  { label: "First group", value: (one) => one.first, numeric: true },
  { label: "Last group", value: (one) => one.last, numeric: true },
  { label: "Keys", value: (one) => one.keys, cell: (one) => count(one.keys), numeric: true },
  { label: "Bytes", value: (one) => one.bytes, cell: (one) => bytes(one.bytes), numeric: true },
  { label: "Records", value: (one) => one.records, cell: (one) => count(one.records), numeric: true },
];
