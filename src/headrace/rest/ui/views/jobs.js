// The jobs of this driver.

import { duration, plural } from "../format.js";
import { html } from "../html.js";
import { useDocument, useNow } from "../live.js";
import { Panel, Status, Table, Time, Waiting } from "../parts.js";

const ENDED = new Set(["FINISHED", "CANCELED", "FAILED"]);
const age = (job, now) => (job["end-time"] > 0 ? job["end-time"] : now) - job["start-time"];

export function Jobs() {
  const found = useDocument("/jobs/overview", 0, 2_000);
  const now = useNow(1_000);
  return html`
    <h1 tabindex="-1">Jobs</h1>
    <${Waiting} of=${found}>${({ jobs }) => html`
      <${JobList} id="running" title="Running" jobs=${jobs.filter((job) => !ENDED.has(job.state))} now=${now} none="No
        job is running in this driver." />
      ${
        jobs.some((job) => ENDED.has(job.state)) &&
        html`<${JobList} id="ended" title="Ended" jobs=${jobs.filter((job) => ENDED.has(job.state))} now=${now} />`
      }
    `}<//>
  `;
}

const columns = (now) => [
  { label: "Name", value: (job) => job.name, cell: (job) => html`<a href=${`#/jobs/${job.jid}`}>${job.name}</a>` },
  { label: "Status", value: (job) => job.state, cell: (job) => html`<${Status} of=${job.state} />` },
  { label: "Started", value: (job) => job["start-time"], cell: (job) => html`<${Time} of=${job["start-time"]} />` },
  { label: "Duration", value: (job) => age(job, now), cell: (job) => duration(age(job, now)), numeric: true },
  { label: "Tasks", value: (job) => job.tasks?.total ?? 0, cell: (job) => tasks(job.tasks), numeric: true },
  { label: "Restarts", value: (job) => job.restarts ?? 0, numeric: true },
  { label: "Id", value: (job) => job.jid, cell: (job) => html`<code>${job.jid}</code>` },
];

const tasks = (counts) => (counts ? `${counts.running ?? 0} of ${plural(counts.total, "task")} running` : "–");

function JobList({ id, title, jobs, now, none }) {
  return html`<${Panel} id=${id} title=${title}>
    <${Table} label=${`${title} jobs`} rows=${jobs} columns=${columns(now)} id=${(job) => job.jid} none=${none} /><//>`;
}
