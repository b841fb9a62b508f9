// State size, files and chain length over time, and the limits of the policy for full checkpoints.

import { byteTicks, durationTicks, LineChart } from "../charts.js";
import { bytes, count, duration, plural, time } from "../format.js";
import { html, pure } from "../html.js";
import { useDocument } from "../live.js";
import { Empty, Facts, Panel, Table, Waiting } from "../parts.js";
import { path } from "../rest.js";

const CHARTS = [
  { field: "state_size", title: "Full size", format: bytes, steps: byteTicks, limit: "max_size" },
  { field: "checkpointed_size", title: "Written by each checkpoint", format: bytes, steps: byteTicks },
  { field: "shared_files", title: "Shared files", format: count, limit: "max_files" },
  { field: "chain_length", title: "Chain length", format: count, limit: "max_chain_length" },
  { field: "objects_written", title: "Objects written", format: count },
  { field: "oldest_file_age", title: "Age of the oldest file", format: duration, steps: durationTicks },
];

export function Files({ feed }) {
  const found = useDocument(path`/jobs/${feed.job.jid}/state-files`, feed.changes);
  return html`<${Waiting} of=${found}>${({ limits = {}, points, operators }) => html`
    <${Panel} id="files" title="State over time" hint="A ring marks a full checkpoint. A dashed line is the limit above
      which the next checkpoint is a full one.">
      ${
        points.length
          ? html`<${Now} last=${points.reduce((a, b) => (b.timestamp > a.timestamp ? b : a))} /><div class="charts">
          ${CHARTS.map(
            (chart) =>
              html`<${Chart} key=${chart.field} chart=${chart} points=${points} limit=${limits?.[chart.limit]} />`,
          )}
              </div>`
          : html`<${Empty}>No checkpoint has been completed yet.<//>`
      }
    <//>
    <${Panel} id="by-operator" title="Shared files by operator">
      <${Table} label="Shared files by operator" rows=${operators ?? []}
        columns=${operatorColumns(limits?.max_files_per_operator)} id=${(one) => one.id} initial=${["Full size", -1]}
          none="No operator has state in shared files." />
    <//>
  `}<//>`;
}

function Now({ last }) {
  return html`<${Facts}
    of=${[
      ["Newest checkpoint", `${last.checkpoint}, ${time(last.timestamp)}`],
      ["Full size", bytes(last.state_size)],
      ["Shared files", count(last.shared_files)],
      ["Chain length", count(last.chain_length)],
    ]} />`;
}

const Chart = pure(({ chart, points, limit }) => {
  const { field, title, format, steps } = chart;
  const known = points
    .filter((point) => point[field] !== null && point[field] !== undefined)
    .toSorted((a, b) => a.timestamp - b.timestamp);
  const line = known.map((point) => ({
    at: point.timestamp,
    value: point[field],
    id: point.checkpoint,
    note: point.full ? `Checkpoint ${point.checkpoint} is full: ${point.full_reason ?? "it was asked for"}` : null,
  }));
  const describe = (point) =>
    `${format(point.value)} at checkpoint ${point.id}, ${time(point.at)}${point.note ? ", full" : ""}`;
  return html`<${LineChart} title=${title} points=${line} format=${format} steps=${steps} describe=${describe}
    limit=${limit === null || limit === undefined ? null : { value: limit, name: "limit" }} />`;
});

const operatorColumns = (limit) => [
  { label: "Operator", value: (one) => one.name },
  {
    label: "Shared files",
    value: (one) => one.shared_files,
    cell: (one) => (limit ? `${count(one.shared_files)} of at most ${plural(limit, "file")}` : count(one.shared_files)),
    numeric: true,
  },
  { label: "Full size", value: (one) => one.state_size, cell: (one) => bytes(one.state_size), numeric: true },
];
