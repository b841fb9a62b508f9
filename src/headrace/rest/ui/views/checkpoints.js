// Checkpoints: overview, history, summary and configuration, as in Flink (SPEC R10.4).

import { bytes, count, duration, plural, yesNo } from "../format.js";
import { html } from "../html.js";
import { useDocument } from "../live.js";
import { Empty, Facts, Panel, Status, Table, Tabs, Text, Time, Waiting } from "../parts.js";
import { path } from "../rest.js";
import { kind, Operators, Outcome } from "./checkpoint.js";

export function Checkpoints({ feed, part = "overview" }) {
  const { job, checkpoints } = feed;
  const base = `#/jobs/${job.jid}/checkpoints`;
  const tabs = [
    [`${base}/overview`, "Overview"],
    [`${base}/history`, "History"],
    [`${base}/summary`, "Summary"],
    [`${base}/configuration`, "Configuration"],
  ];
  return html`
    <${Tabs} label="Checkpoints" of=${tabs} current=${`${base}/${part}`} />
    ${
      part === "configuration"
        ? html`<${CheckpointConfiguration} jid=${job.jid} />`
        : !checkpoints
          ? html`<p class="quiet" role="status">Loading</p>`
          : Object.hasOwn(PARTS, part)
            ? PARTS[part]({ feed, base })
            : html`<p class="problem" role="alert">There is no such page.</p>`
    }
  `;
}

const PARTS = {
  overview: ({ feed, base }) => html`<${CheckpointOverview} checkpoints=${feed.checkpoints} base=${base} />`,
  history: ({ feed, base }) => html`<${History} feed=${feed} base=${base} />`,
  summary: ({ feed }) => html`<${Summary} summary=${feed.checkpoints.summary} />`,
};

// ---- overview -------------------------------------------------------------------------------------------------------

function CheckpointOverview({ checkpoints: { counts, latest }, base }) {
  const link = (one) => html`<a href=${`${base}/${one.id}`}>${one.id}</a>`;
  const place = (one) => one.external_path && ["Path", html`<${Text}>${one.external_path}<//>`];
  return html`
    <${Panel} id="counts" title="Counts">
      <${Facts}
        of=${[
          ["Triggered", count(counts.total)],
          ["In progress", count(counts.in_progress)],
          ["Completed", count(counts.completed)],
          ["Failed", count(counts.failed)],
          ["Restored", count(counts.restored)],
        ]} />
    <//>
    <div class="columns">
      <${Latest} id="completed" title="Latest completed checkpoint" of=${latest.completed}
        facts=${(one) => [
          ["Id", link(one)],
          ["Completed", html`<${Time} of=${one.latest_ack_timestamp} />`],
          ["Duration", duration(one.end_to_end_duration)],
          ["Written", bytes(one.checkpointed_size)],
          ["Full size", bytes(one.state_size)],
          place(one),
        ]} />
      <${Latest} id="failed" title="Latest failed checkpoint" of=${latest.failed} facts=${(one) => [
        ["Id", link(one)],
        ["Failed", html`<${Time} of=${one.failure_timestamp} />`],
        ["Cause", one.failure_message ?? "–"],
      ]} />
      <${Latest} id="savepoint" title="Latest savepoint" of=${latest.savepoint}
        facts=${(one) => [
          ["Id", link(one)],
          ["Completed", html`<${Time} of=${one.latest_ack_timestamp} />`],
          ["Size", bytes(one.state_size)],
          ["Format", one.savepointFormat ?? "–"],
          place(one),
        ]} />
      <${Latest} id="restored" title="Latest restore" of=${latest.restored}
        facts=${(one) => [
          ["Id", String(one.id)],
          ["Restored", html`<${Time} of=${one.restore_timestamp} />`],
          ["From", one.is_savepoint ? "a savepoint" : "a checkpoint"],
          place(one),
        ]} />
    </div>
  `;
}

function Latest({ id, title, of, facts }) {
  return html`<${Panel} id=${id} title=${title}>
    ${of ? html`<${Facts} wide of=${facts(of)} />` : html`<${Empty}>None yet.<//>`}<//>`;
}

// ---- history --------------------------------------------------------------------------------------------------------

const historyColumns = (base) => [
  {
    label: "Id",
    value: (one) => one.id,
    cell: (one) =>
      html`<a href=${`${base}/${one.id}`} aria-label=${`Checkpoint ${one.id} with its timeline`}>${one.id}</a>`,
    numeric: true,
  },
  { label: "Status", value: (one) => one.status, cell: (one) => html`<${Status} of=${one.status} />` },
  { label: "Kind", value: kind },
  {
    label: "Acknowledged",
    value: (one) => one.num_acknowledged_subtasks,
    cell: (one) => `${one.num_acknowledged_subtasks} of ${one.num_subtasks}`,
    numeric: true,
  },
  {
    label: "Triggered",
    value: (one) => one.trigger_timestamp,
    cell: (one) => html`<${Time} of=${one.trigger_timestamp} />`,
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
  {
    label: "Shared files",
    value: (one) => one.shared_files ?? null,
    cell: (one) => count(one.shared_files),
    numeric: true,
  },
];
let cached = { base: null, columns: null }; // the same columns for the same job, so that rows stay as they are

function History({ feed, base }) {
  if (cached.base !== base) cached = { base, columns: historyColumns(base) };
  const detail = (one) => html`<${HistoryDetail} feed=${feed} entry=${one} base=${base} />`;
  return html`<${Panel} id="history" title="History" hint="Newest first. A row opens to its operators, an operator to
    its subtasks; the id leads to the timeline.">
    <${Table} label="Checkpoints" rows=${feed.checkpoints.history} columns=${cached.columns} id=${(one) => one.id}
      detail=${detail} none="There are no checkpoints yet." />
  <//>`;
}

function HistoryDetail({ feed, entry, base }) {
  const { jid } = feed.job;
  const found = useDocument(
    path`/jobs/${jid}/checkpoints/details/${entry.id}`,
    `${entry.status} ${entry.num_acknowledged_subtasks}`,
  );
  return html`
    <p><a href=${`${base}/${entry.id}`}>Timeline of checkpoint ${entry.id}</a></p>
    <${Outcome} of=${entry} />
    <${Waiting} of=${found}>${(details) => html`<${Operators} job=${feed.job} details=${details} />`}<//>
  `;
}

// ---- summary --------------------------------------------------------------------------------------------------------

const MEASURES = [
  ["end_to_end_duration", "Duration", duration],
  ["checkpointed_size", "Written", bytes],
  ["state_size", "Full size", bytes],
  ["processed_data", "Processed in-flight data", bytes],
  ["persisted_data", "Stored in-flight data", bytes],
];
const STATISTICS = [
  ["min", "Minimum"],
  ["avg", "Average"],
  ["max", "Maximum"],
  ["p50", "50 %"],
  ["p90", "90 %"],
  ["p95", "95 %"],
  ["p99", "99 %"],
  ["p999", "99.9 %"],
];
const SUMMARY_COLUMNS = [
  { label: "Of completed checkpoints", cell: (row) => row.label },
  ...STATISTICS.map(([field, label]) => ({ label, cell: (row) => row.format(row.values[field]), numeric: true })),
];

function Summary({ summary }) {
  const rows = MEASURES.filter(([field]) => summary[field]).map(([field, label, format]) => ({
    label,
    format,
    values: summary[field],
  }));
  return html`<${Panel} id="summary" title="Summary" hint="Percentiles say which share of checkpoints stayed at or below
    a value.">
      <${Table} label="Summary of checkpoints" rows=${rows} columns=${SUMMARY_COLUMNS} id=${(row) => row.label} /><//>`;
}

// ---- configuration --------------------------------------------------------------------------------------------------

function CheckpointConfiguration({ jid }) {
  const found = useDocument(path`/jobs/${jid}/checkpoints/config`);
  return html`<${Waiting} of=${found}>${(conf) => html`
    <div class="columns">
      <${Panel} id="configuration" title="Checkpoints"><${Facts} wide of=${[
        ["Mode", conf.mode === "exactly_once" ? "exactly once" : "at least once"],
        ["Interval", conf.interval > 0 ? duration(conf.interval) : "off"],
        ["Timeout", duration(conf.timeout)],
        ["Pause between checkpoints", duration(conf.min_pause)],
        ["At the same time", count(conf.max_concurrent)],
        ["Unaligned", yesNo(conf.unaligned_checkpoints)],
        conf.unaligned_checkpoints && ["Aligned at first for", duration(conf.aligned_checkpoint_timeout)],
        ["Tolerable failures", count(conf.tolerable_failed_checkpoints)],
        ["After tasks have finished", yesNo(conf.checkpoints_after_tasks_finish)],
        [
          "Kept after a cancel",
          conf.externalization?.enabled ? yesNo(!conf.externalization.delete_on_cancellation) : "no",
        ],
      ]} /><//>
      <${Panel} id="storage" title="State and storage"><${Facts} wide of=${[
        ["State backend", conf.state_backend],
        ["Storage", conf.checkpoint_storage],
        conf.checkpoint_directory && ["Directory", html`<${Text}>${conf.checkpoint_directory}<//>`],
        ["Incremental", yesNo(conf.incremental)],
        ["Change log", yesNo(conf.state_changelog_enabled)],
      ]} /><//>
      ${
        conf.full_checkpoint &&
        html`<${Panel} id="policy" title="Full checkpoints"><${Facts} wide of=${[
          ["Above a size of", limit(conf.full_checkpoint.max_size, bytes)],
          ["Above shared files", limit(conf.full_checkpoint.max_files, count)],
          ["Above shared files of one operator", limit(conf.full_checkpoint.max_files_per_operator, count)],
          ["Above a chain of", limit(conf.full_checkpoint.max_chain_length, (length) => plural(length, "checkpoint"))],
          ["By schedule", conf.full_checkpoint.cron ?? "never"],
          ["At least between two", duration(conf.full_checkpoint.cooldown_ms)],
        ]} /><//>`
      }
    </div>
  `}<//>`;
}

const limit = (value, format) => (value === null || value === undefined ? "no limit" : format(value));
