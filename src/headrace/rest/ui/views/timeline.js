// The barrier timeline of a checkpoint: a line for each subtask, from the trigger to its acknowledgement, so that the
// subtask that held it up is seen at once. Each phase of an operator is one path, however many subtasks there are.

import { durationTicks } from "../charts.js";
import { bytes, duration, plural } from "../format.js";
import { html, pure, useMemo, useState } from "../html.js";
import { useWidth } from "../live.js";
import { Panel, Table } from "../parts.js";

const PHASES = [
  // name, legend, and what a subtask did then
  ["delay", "until the first barrier", "waited for its first barrier"],
  ["alignment", "until the last barrier (alignment)", "waited for its last barrier"],
  ["sync", "synchronous part", "took the synchronous part of its snapshot"],
  ["async", "written in the background", "wrote its snapshot"],
  ["ack", "until the driver knew", "waited until the driver took its acknowledgement"],
];
const FEW = 16; // up to so many subtasks a line is high enough to be labelled
const [THIN, HIGH] = [3, 15];
const EDGE = 10;

const between = (from, to) => (from !== null && to !== null && to >= from ? [from, to] : null);

// The phases of one subtask as [start, end] in ms since the trigger; null if a time is not known.
export function phases(subtask, trigger) {
  const at = (field) => (subtask[field] === null || subtask[field] === undefined ? null : subtask[field] - trigger);
  const [first, last, start, sync, written] = [
    "first_barrier",
    "last_barrier",
    "sync_start",
    "sync_end",
    "async_end",
  ].map(at);
  const begun = start ?? last ?? first;
  return {
    delay: between(0, first ?? begun),
    alignment: between(first, last),
    sync: between(begun, sync),
    async: between(sync ?? begun, written ?? at("ack_timestamp")),
    ack: between(written, at("ack_timestamp")),
    end: at("ack_timestamp") ?? written,
  };
}

function grouped({ subtasks, trigger_timestamp: trigger }) {
  const groups = new Map();
  for (const subtask of subtasks) {
    if (!groups.has(subtask.vertex))
      groups.set(subtask.vertex, { id: subtask.vertex, name: subtask["vertex-name"], rows: [] });
    groups.get(subtask.vertex).rows.push({ ...subtask, phases: phases(subtask, trigger) });
  }
  for (const group of groups.values()) group.rows.sort((a, b) => a.index - b.index);
  return [...groups.values()];
}

const length = (span) => (span ? span[1] - span[0] : null);

// One sentence about the subtask that acknowledged last, and where its time went.
export function verdict(groups) {
  const rows = groups.flatMap((group) => group.rows.map((row) => ({ ...row, name: group.name })));
  const waiting = rows.filter((row) => row.ack_timestamp === null || row.ack_timestamp === undefined);
  if (!rows.length) return "No subtask has reported yet.";
  if (waiting.length) {
    const few = waiting
      .slice(0, 3)
      .map((row) => `subtask ${row.index} of ${row.name}`)
      .join(", ");
    return `${plural(waiting.length, "subtask has", "subtasks have")} not acknowledged: ${few}${
      waiting.length > 3 ? " and others" : ""
    }.`;
  }
  const last = rows.reduce((slowest, row) => (row.phases.end > slowest.phases.end ? row : slowest));
  const spent = PHASES.map(([phase, , did]) => [length(last.phases[phase]) ?? 0, did]);
  const [longest, did] = spent.reduce((most, one) => (one[0] > most[0] ? one : most));
  const why = longest > 0 ? `; for ${duration(longest)} of that it ${did}` : "";
  return `Subtask ${last.index} of ${last.name} acknowledged last, ${duration(last.phases.end)} after the trigger${why}.`;
}

export const Timeline = pure(({ of }) => {
  const [ref, width] = useWidth();
  const groups = useMemo(() => grouped(of), [of]);
  const end = Math.max(
    1,
    (of.completed_timestamp ?? 0) - of.trigger_timestamp,
    ...groups.flatMap((group) => group.rows.map((row) => row.phases.end ?? 0)),
  );
  const steps = durationTicks(end, Math.max(3, Math.floor(width / 120))).filter((step) => step <= end);
  const x = (ms) => EDGE + (ms / end) * (width - 2 * EDGE);
  const slowest = groups
    .flatMap((group) => group.rows)
    .reduce((most, row) => ((row.phases.end ?? 0) > (most?.phases.end ?? -1) ? row : most), null);
  return html`
    <${Panel} id="timeline" title="Barrier timeline" hint=${verdict(groups)}
      extra=${html`<p class="legend">
        ${PHASES.map(([phase, words]) => html`<span><i class=${`mark ${phase}`}></i>${words}</span>`)}</p>`}>
      <div ref=${ref} class="timeline">
        <svg class="axis" width=${width} height="18" aria-hidden="true">
        ${steps.map(
          (step) =>
            html`<text x=${Math.max(x(step), EDGE)} y="13"
            text-anchor=${step === 0 ? "start" : x(step) > width - 40 ? "end" : "middle"}>${duration(step)}</text>`,
        )}
              </svg>
        ${groups.map(
          (group) =>
            html`<${Group} key=${group.id} group=${group} width=${width} x=${x} steps=${steps} slowest=${slowest} />`,
        )}
      </div>
    <//>
  `;
});

function Group({ group, width, x, steps, slowest }) {
  const [chosen, setChosen] = useState(null);
  const [isTable, setTable] = useState(false);
  const height = group.rows.length > FEW ? THIN : HIGH;
  const all = group.rows.length * height;
  const lines = useMemo(() => paths(group.rows, x, height), [group, width]);
  const row = group.rows[chosen];
  const pick = (event) => {
    const at = Math.floor((event.clientY - event.currentTarget.getBoundingClientRect().top) / height);
    setChosen(group.rows[at] ? at : null);
  };
  const ends = group.rows.map((one) => one.phases.end).filter((one) => one !== null);
  const summary = ends.length
    ? `${duration(Math.min(...ends))} to ${duration(Math.max(...ends))}`
    : "not acknowledged yet";
  return html`
    <section class="lane" aria-label=${`${group.name}: ${summary}`}>
      <h3><span class="name">${group.name}</span> <span class="quiet">
      ${row ? tip(row) : `${plural(group.rows.length, "subtask")}, ${summary}`}</span>
        <button class="small" aria-expanded=${isTable} onClick=${() => setTable(!isTable)}>
        ${isTable ? "Hide the table" : "As a table"}</button></h3>
      <svg width=${width} height=${all} aria-hidden="true" onPointerMove=${pick} onPointerDown=${pick}
        onPointerLeave=${() => setChosen(null)}>
        ${steps.map((step) => html`<line class="grid" x1=${x(step)} x2=${x(step)} y1="0" y2=${all} />`)}
        ${chosen !== null && html`<rect class="chosen" x="0" y=${chosen * height} width=${width} height=${height} />`}
        ${PHASES.map(([phase]) => html`<path key=${phase} class=${phase} d=${lines[phase]} />`)}
        ${
          slowest?.vertex === group.id &&
          html`<path class="slowest" d=${`M${width - 1} ${group.rows.indexOf(slowest) * height + height / 2}l6 -4v8z`}
            transform="translate(-8 0)" />`
        }
        ${
          height === HIGH &&
          group.rows.map(
            (one, i) =>
              html`<text x=${Math.min(x(one.phases.end ?? 0) + 4, width - 60)} y=${i * height + 11}>${one.index}</text>`,
          )
        }
      </svg>
      ${
        isTable &&
        html`<${Table} label=${`Phases of ${group.name}`} rows=${group.rows} columns=${COLUMNS} id=${(one) => one.index}
          initial=${["Acknowledged after", -1]} />`
      }
    </section>
  `;
}

// One path for each phase: a box for each subtask, which is thin where the subtask itself has nothing to do any more.
function paths(rows, x, height) {
  return Object.fromEntries(
    PHASES.map(([phase]) => {
      const thick = phase === "ack" ? Math.max(height / 8, 0.75) : height > THIN ? height - 4 : height - 0.5;
      const top = (height - thick) / 2;
      const box = ({ phases: { [phase]: span } }, i) => {
        if (!span || (span[1] === span[0] && phase !== "sync")) return "";
        const wide = Math.max(x(span[1]) - x(span[0]), 1);
        return `M${x(span[0]).toFixed(1)} ${i * height + top}h${wide.toFixed(1)}v${thick}h${(-wide).toFixed(1)}z`;
      };
      return [phase, rows.map(box).join("")];
    }),
  );
}

const tip = (row) =>
  `subtask ${row.index}: ${PHASES.map(([phase, words]) => [length(row.phases[phase]), words])
    .filter(([ms]) => ms > 0)
    .map(([ms, words]) => `${words} ${duration(ms)}`)
    .join(", ")}${row.unaligned ? ", unaligned" : ""}; wrote ${bytes(row.checkpointed_size)}`;

const span = (phase) => ({
  value: (one) => length(one.phases[phase]),
  cell: (one) => duration(length(one.phases[phase])),
  numeric: true,
});
const COLUMNS = [
  { label: "Subtask", value: (one) => one.index, numeric: true },
  {
    label: "Acknowledged after",
    value: (one) => one.phases.end,
    cell: (one) => duration(one.phases.end),
    numeric: true,
  },
  { label: "Start delay", ...span("delay") },
  { label: "Alignment", ...span("alignment") },
  { label: "Sync", ...span("sync") },
  { label: "Async", ...span("async") },
  {
    label: "Written",
    value: (one) => one.checkpointed_size,
    cell: (one) => bytes(one.checkpointed_size),
    numeric: true,
  },
  { label: "Full size", value: (one) => one.state_size, cell: (one) => bytes(one.state_size), numeric: true },
];
