// One checkpoint: its timeline, then operators, then subtasks.

import { bytes, count, duration, plural, yesNo } from "../format.js";
import { html, useRef } from "../html.js";
import { useDocument } from "../live.js";
import { Facts, Panel, Status, Table, Text, Time, Waiting } from "../parts.js";
import { path } from "../rest.js";
import { Timeline } from "./timeline.js";

export function Checkpoint({ feed, id }) {
  const { job, checkpoints } = feed;
  const entry = checkpoints?.history.find((one) => String(one.id) === id);
  // Loaded when the history is there, and again while the checkpoint runs: whenever another subtask has acknowledged. It may
  // leave the history while it is looked at.
  const version = useRef("");
  if (entry) version.current = `${entry.status} ${entry.num_acknowledged_subtasks}`;
  const address = checkpoints && path`/jobs/${job.jid}/checkpoints/details/${id}`;
  const found = useDocument(address, version.current);
  const timeline = useDocument(address && `${address}/timeline`, version.current);
  const neighbour = (step) => checkpoints?.history.find((one) => one.id === Number(id) + step);
  const link = (one, text) => one && html` <a href=${`#/jobs/${job.jid}/checkpoints/${one.id}`}>${text}</a>`;
  return html`
    <p class="crumb"><a href=${`#/jobs/${job.jid}/checkpoints/history`}>All checkpoints</a>
    ${link(neighbour(-1), "Earlier")}${link(neighbour(1), "Later")}</p>
    <${Waiting} of=${found}>${(details) => html`
      <h2 class="title">Checkpoint ${details.id} <${Status} of=${details.status} /></h2>
      <${Facts} of=${[
        ["Kind", kind(details)],
        ["Triggered", html`<${Time} of=${details.trigger_timestamp} />`],
        ["Duration", duration(details.end_to_end_duration)],
        ["Acknowledged", `${details.num_acknowledged_subtasks} of ${details.num_subtasks}`],
        ["Written", bytes(details.checkpointed_size)],
        ["Full size", bytes(details.state_size)],
        ["In-flight data", `${bytes(details.processed_data)} (${bytes(details.persisted_data)} stored)`],
      ]} />
      <${Outcome} of=${details} />
      <${Waiting} of=${timeline}>${(data) => html`<${Timeline} of=${data} />`}<//>
      <${Panel} id="operators" title="Operators"><${Operators} job=${job} details=${details} /><//>
    `}<//>
  `;
}

export const kind = (one) =>
  one.is_savepoint
    ? "savepoint"
    : `${one.full ? "full" : "incremental"}${one.checkpoint_type === "UNALIGNED_CHECKPOINT" ? ", unaligned" : ""}`;

export function Outcome({ of }) {
  return html`<${Facts} wide of=${[
    of.failure_message && ["Failed because", of.failure_message],
    of.external_path && ["Path", html`<${Text}>${of.external_path}<//>`],
    of.discarded && ["Discarded", "yes, a newer checkpoint has replaced it"],
    of.full_reason && ["Full because", of.full_reason],
    of.chain_length > 0 && ["Chain length", plural(of.chain_length, "checkpoint")],
    of.objects_written >= 0 && ["Objects written", count(of.objects_written)],
  ]} />`;
}

// ---- operators and subtasks -----------------------------------------------------------------------------------------

const OPERATOR_COLUMNS = [
  {
    label: "Operator",
    value: (one) => one.name,
    cell: (one) => html`<span class="name" title=${one.name}>${one.name}</span>`,
  },
  {
    label: "Acknowledged",
    value: (one) => one.num_acknowledged_subtasks,
    cell: (one) => `${one.num_acknowledged_subtasks} of ${one.num_subtasks}`,
    numeric: true,
  },
  {
    label: "Last acknowledgement",
    value: (one) => one.latest_ack_timestamp,
    cell: (one) => html`<${Time} of=${one.latest_ack_timestamp} />`,
  },
  {
    label: "Duration",
    value: (one) => one.end_to_end_duration,
    cell: (one) => duration(one.end_to_end_duration),
    numeric: true,
  },
  {
    label: "Written",
    value: (one) => one.checkpointed_size,
    cell: (one) => bytes(one.checkpointed_size),
    numeric: true,
  },
  { label: "Full size", value: (one) => one.state_size, cell: (one) => bytes(one.state_size), numeric: true },
  {
    label: "In-flight data",
    value: (one) => one.processed_data,
    cell: (one) => html`${bytes(one.processed_data)} (${bytes(one.persisted_data)} stored)`,
    numeric: true,
  },
];

export function Operators({ job, details }) {
  const name = (id) => job.vertices.find((vertex) => vertex.id === id)?.name ?? id;
  const rows = Object.entries(details.tasks ?? {}).map(([id, task]) => ({ ...task, id, name: name(id) }));
  const subtasks = (row) =>
    html`<${CheckpointSubtasks} jid=${job.jid} checkpoint=${details.id} vertex=${row.id}
      version=${row.num_acknowledged_subtasks} />`;
  return html`<${Table} label="Operators" rows=${rows} columns=${OPERATOR_COLUMNS} id=${(one) => one.id}
    detail=${subtasks} none="No operator has reported yet." />`;
}

const part = (value, format = duration) => (value === undefined ? "–" : format(value));
const SUBTASK_COLUMNS = [
  { label: "Subtask", value: (one) => one.index, numeric: true },
  { label: "Status", value: (one) => one.status, cell: (one) => html`<${Status} of=${one.status} />` },
  {
    label: "Acknowledged",
    value: (one) => one.ack_timestamp ?? null,
    cell: (one) => html`<${Time} of=${one.ack_timestamp} />`,
  },
  {
    label: "Duration",
    value: (one) => one.end_to_end_duration ?? null,
    cell: (one) => part(one.end_to_end_duration),
    numeric: true,
  },
  {
    label: "Start delay",
    value: (one) => one.start_delay ?? null,
    cell: (one) => part(one.start_delay),
    numeric: true,
  },
  {
    label: "Alignment",
    value: (one) => one.alignment?.duration ?? null,
    cell: (one) => part(one.alignment?.duration),
    numeric: true,
  },
  {
    label: "Sync",
    value: (one) => one.checkpoint?.sync ?? null,
    cell: (one) => part(one.checkpoint?.sync),
    numeric: true,
  },
  {
    label: "Async",
    value: (one) => one.checkpoint?.async ?? null,
    cell: (one) => part(one.checkpoint?.async),
    numeric: true,
  },
  {
    label: "Written",
    value: (one) => one.checkpointed_size ?? null,
    cell: (one) => part(one.checkpointed_size, bytes),
    numeric: true,
  },
  {
    label: "Full size",
    value: (one) => one.state_size ?? null,
    cell: (one) => part(one.state_size, bytes),
    numeric: true,
  },
  {
    label: "In-flight data",
    value: (one) => one.alignment?.processed ?? null,
    cell: (one) =>
      one.alignment ? html`${bytes(one.alignment.processed)} (${bytes(one.alignment.persisted)} stored)` : "–",
    numeric: true,
  },
  {
    label: "Unaligned",
    value: (one) => (one.unaligned_checkpoint === undefined ? null : yesNo(one.unaligned_checkpoint)),
  },
];

function CheckpointSubtasks({ jid, checkpoint, vertex, version }) {
  const found = useDocument(path`/jobs/${jid}/checkpoints/details/${checkpoint}/subtasks/${vertex}`, version);
  return html`<${Waiting} of=${found}>${({ subtasks, summary }) => html`
    ${
      summary &&
      html`<p class="hint">${[
        ["Duration", summary.end_to_end_duration],
        ["start delay", summary.start_delay],
        ["alignment", summary.alignment?.duration],
        ["sync", summary.checkpoint_duration?.sync],
        ["async", summary.checkpoint_duration?.async],
      ]
        .filter(([, values]) => values)
        .map(
          ([label, values]) =>
            `${label} ${duration(values.min)} to ${duration(values.max)}, mean ${duration(values.avg)}`,
        )
        .join("; ")}.</p>`
    }
    <${Table} label=${`Subtasks, ${count(subtasks.length)} in all`} rows=${subtasks} columns=${SUBTASK_COLUMNS}
      id=${(one) => one.index} />
  `}<//>`;
}
