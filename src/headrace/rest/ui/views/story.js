// The job's story: its attempts, why each ended, what the next one was restored from, and how long a restart took.

import { duration, plural } from "../format.js";
import { html } from "../html.js";
import { useDocument, useNow, useWidth } from "../live.js";
import { Empty, Facts, Panel, Status, Text, Time, Waiting } from "../parts.js";
import { path } from "../rest.js";
import { withoutLine } from "./exceptions.js";

const PHASES = [
  ["cancel", "stop the old attempt"],
  ["wait", "wait for the restart strategy"],
  ["schedule", "start the tasks"],
  ["restore", "restore the state"],
];

export function Story({ feed }) {
  const { job } = feed;
  const found = useDocument(path`/jobs/${job.jid}/story`, `${job.state} ${feed.changes}`, 5_000);
  const now = useNow(1_000);
  return html`<${Waiting} of=${found}>${({ attempts, dropped }) => html`
    <${Panel} id="story" title="Story"
      hint=${
        attempts.length
          ? `${summary(attempts, now)}${
              dropped ? ` ${plural(dropped, "older attempt is", "older attempts are")} not kept.` : ""
            }`
          : null
      }>
      ${
        attempts.length
          ? html`<${Span} attempts=${attempts} now=${now} /><ol class="story">
          ${attempts
            .toReversed()
            .map((attempt) => html`<${Attempt} key=${attempt.number} jid=${job.jid} of=${attempt} now=${now} />`)}</ol>`
          : html`<${Empty}>The job has not started yet.<//>`
      }
    <//>
  `}<//>`;
}

function summary(attempts, now) {
  const ran = attempts.reduce((sum, one) => sum + (one.running ? (one.ended ?? now) - one.running : 0), 0);
  const whole = (attempts.at(-1).ended ?? now) - attempts[0].started;
  return `${plural(attempts.length, "attempt")} in ${duration(whole)}; the job was running for ${duration(ran)} of that.`;
}

// All attempts in one line: starting, running, and the gaps between them.
function Span({ attempts, now }) {
  const [ref, width] = useWidth();
  const [from, to] = [attempts[0].started, Math.max(attempts.at(-1).ended ?? now, attempts[0].started + 1)];
  const x = (ms) => ((ms - from) / (to - from)) * width;
  const box = (start, end, kind) =>
    start !== null &&
    end > start &&
    html`<rect class=${kind} x=${x(start)} width=${Math.max(x(end) - x(start), 1)} y="4" height="20" />`;
  return html`<div ref=${ref}><svg class="span" width=${width} height="28" aria-hidden="true">
    ${attempts.map(
      (one) =>
        html`${box(one.started, one.running ?? one.ended ?? now, "starting")}${
          one.running && box(one.running, one.ended ?? now, "running")
        }${one.cause && one.ended && html`<path class="fell" d=${`M${Math.min(x(one.ended), width - 2)} 0v28`} />`}`,
    )}
  </svg></div><p class="legend"><span><i class="mark starting"></i>starting</span><span>
  <i class="mark running"></i>running</span><span><i class="mark fell"></i>failed</span></p>`;
}

function Attempt({ jid, of, now }) {
  const phases = PHASES.filter(([name]) => of.phases?.[name] > 0);
  const total = phases.reduce((sum, [name]) => sum + of.phases[name], 0);
  return html`
    <li>
      <h3>Attempt ${of.number + 1} <${Status}
        of=${of.outcome === "OPEN" ? (of.running ? "RUNNING" : "STARTING") : of.outcome} /></h3>
      ${
        of.cause &&
        html`<div class="failure">
        ${of.cause.location && html`<p class="where"><${Text}>${of.cause.location}<//></p>`}
        <p class="message">${withoutLine(of.cause.message, of.cause.location)}</p>
        ${
          of.cause.operator &&
          html`<p
            class="quiet">in ${of.cause.operator}${
              of.cause.subtask !== null && of.cause.subtask !== undefined ? `, subtask ${of.cause.subtask}` : ""
            }</p>`
        }
        ${
          of.cause.traceback &&
          html`<details><summary>Trace</summary><pre tabindex="0">${of.cause.traceback}</pre></details>`
        }
      </div>`
      }
      <${Facts} of=${[
        ["Started", html`<${Time} of=${of.started} />`],
        [
          "Running",
          of.running ? html`<${Time} of=${of.running} />, after ${duration(of.running - of.started)}` : "not reached",
        ],
        of.ended && ["Ended", html`<${Time} of=${of.ended} />`],
        of.running && ["Ran for", duration((of.ended ?? now) - of.running)],
        [
          "From",
          of.restored_checkpoint === null || of.restored_checkpoint === undefined
            ? "the beginning"
            : html`<a href=${`#/jobs/${jid}/checkpoints/${of.restored_checkpoint}`}>checkpoint ${of.restored_checkpoint}
              </a>`,
        ],
      ]} />
      ${
        total > 0 &&
        html`
        <div class="phases" aria-hidden="true">
        ${phases.map(([name]) => html`<i class=${name} style=${{ flexGrow: of.phases[name] }}></i>`)}</div>
        <p class="legend">
        ${phases.map(
          ([name, words]) => html`<span><i class=${`mark ${name}`}></i>${words}: ${duration(of.phases[name])}</span>`,
        )}</p>
      `
      }
    </li>
  `;
}
