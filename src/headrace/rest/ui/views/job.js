// The frame around the views of one job: its name, status, actions and parts.

import { Actions } from "../actions.js";
import { duration, plural } from "../format.js";
import { html, useEffect } from "../html.js";
import { useJob, useNow } from "../live.js";
import { External, Facts, Problem, Status, seenAt, Tabs, Time } from "../parts.js";
import { Checkpoint } from "./checkpoint.js";
import { Checkpoints } from "./checkpoints.js";
import { Configuration } from "./configuration.js";
import { Exceptions } from "./exceptions.js";
import { Files } from "./files.js";
import { Graph } from "./graph.js";
import { KeyGroups } from "./key_groups.js";
import { StateBrowser } from "./state.js";
import { Story } from "./story.js";
import { Vertex } from "./vertex.js";

// The parts of a job by the first word of their address; each is given what follows in the address.
const PARTS = {
  "": ["Graph", (feed) => html`<${Graph} feed=${feed} />`],
  checkpoints: [
    "Checkpoints",
    (feed, [part]) =>
      /^\d+$/.test(part)
        ? html`<${Checkpoint} key=${part} feed=${feed} id=${part} />`
        : html`<${Checkpoints} feed=${feed} part=${part} />`,
  ],
  files: ["State size", (feed) => html`<${Files} feed=${feed} />`],
  "key-groups": ["Key groups", (feed) => html`<${KeyGroups} feed=${feed} />`],
  state: [
    "State browser",
    (feed, [operator, state]) => html`<${StateBrowser} feed=${feed} operator=${operator} state=${state} />`,
  ],
  exceptions: ["Exceptions", (feed) => html`<${Exceptions} feed=${feed} />`],
  story: ["Story", (feed) => html`<${Story} feed=${feed} />`],
  configuration: ["Configuration", (feed) => html`<${Configuration} feed=${feed} />`],
};

export function Job({ id, rest, report }) {
  const feed = useJob(id);
  const [word = "", ...more] = rest;
  const [title, view] =
    word === "vertices"
      ? ["Vertex", (of, [vertex, part]) => html`<${Vertex} key=${vertex} feed=${of} id=${vertex} part=${part} />`]
      : Object.hasOwn(PARTS, word)
        ? PARTS[word]
        : [null];
  const { job, error } = feed;
  useEffect(() => {
    if (job) document.title = `${title ?? "Not found"} · ${job.name} · Headrace`;
  }, [job?.name, title]);
  if (!job)
    return html`<h1 tabindex="-1">Job</h1>
      ${error ? html`<${Problem} error=${error} />` : html`<p class="quiet" role="status">Loading</p>`}`;
  const tabs = Object.entries(PARTS).map(([address, [name]]) => [
    address ? `#/jobs/${id}/${address}` : `#/jobs/${id}`,
    name,
  ]);
  const current = word === "vertices" ? "" : word;
  return html`
    <header class="job">
      <div><h1 tabindex="-1">${job.name}</h1><${Status} of=${job.state} /><${Connection} feed=${feed} /></div>
      <${JobFacts} job=${job} />
      <${Actions} job=${job} report=${report} />
    </header>
    <${Tabs} label="Parts of the job" of=${tabs} current=${current ? `#/jobs/${id}/${current}` : `#/jobs/${id}`} />
    ${error && html`<${Problem} error=${error} />`}
    ${view ? view(feed, more) : html`<p class="problem" role="alert">There is no such page.</p>`}
  `;
}

function JobFacts({ job }) {
  const now = useNow(1_000);
  const isOver = job["end-time"] > 0;
  return html`<${Facts} of=${[
    ["Started", html`<${Time} of=${job["start-time"]} />`],
    isOver && ["Ended", html`<${Time} of=${job["end-time"]} />`],
    ["Duration", duration((isOver ? job["end-time"] : now) - job["start-time"])],
    job.restarts > 0 && ["Restarts", html`<a href=${`#/jobs/${job.jid}/story`}>${plural(job.restarts, "restart")}</a>`],
    ["Id", html`<code>${job.jid}</code>`],
    job["spark-ui"] && ["Spark", html`<${External} href=${job["spark-ui"]}>Spark UI<//>`],
  ]} />`;
}

// Said in words as well: a page that no longer changes must not look like a job that does nothing.
function Connection({ feed }) {
  const words = {
    live: "live",
    connecting: "connecting",
    polling: feed.error ? `no connection, ${seenAt(feed.seen)}` : "without the event stream, every 3 s",
  };
  return html`<span class=${`connection ${feed.error ? "lost" : feed.connection}`} role="status">
    ${words[feed.connection]}</span>`;
}
