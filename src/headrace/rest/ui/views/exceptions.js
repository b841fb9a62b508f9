// Failures, each led by the line of the user's program that raised it.
import { html } from "../html.js";
import { useDocument } from "../live.js";
import { Empty, Facts, Panel, Text, Time, Waiting } from "../parts.js";
import { path } from "../rest.js";

export function Exceptions({ feed }) {
  const found = useDocument(path`/jobs/${feed.job.jid}/exceptions`, `${feed.job.state} ${feed.changes}`, 5_000);
  return html`<${Waiting} of=${found}>${(data) => {
    const entries = data.exceptionHistory?.entries ?? [];
    return html`
      <${Panel} id="exceptions" title="Exceptions"
        hint=${data.exceptionHistory?.truncated ? "Newest first; older ones are not kept." : "Newest first."}>
        ${
          entries.length
            ? entries.map(
                (entry, i) => html`<${Failure} key=${`${entry.timestamp} ${i}`} of=${entry} isOpen=${i === 0} />`,
              )
            : html`<${Empty}>Nothing has failed.<//>`
        }
      <//>
    `;
  }}<//>`;
}

// The backend puts the message first and the trace of Python behind it; the line that leads is not said twice.
export function messageAndTrace(stacktrace, line) {
  const at = stacktrace.indexOf("\n\nTraceback");
  const [message, trace] = at < 0 ? [stacktrace, null] : [stacktrace.slice(0, at), stacktrace.slice(at + 2)];
  return [withoutLine(message, line), trace];
}

export const withoutLine = (message, line) =>
  line && message.startsWith(`${line}: `) ? message.slice(line.length + 2) : message;

function Failure({ of, isOpen }) {
  const line = of.failureLabels?.location;
  const [message, trace] = messageAndTrace(of.stacktrace ?? "", line);
  return html`
    <article class="failure">
      ${line && html`<p class="where"><${Text}>${line}<//></p>`}
      <h3>${message}</h3>
      <${Facts} of=${[
        ["When", html`<${Time} of=${of.timestamp} />`],
        of.taskName && ["Task", of.taskName],
        ["Error", of.exceptionName],
        of.endpoint && ["Host", of.endpoint],
      ]} />
      ${trace && html`<details open=${isOpen}><summary>Trace</summary><pre tabindex="0">${trace}</pre></details>`}
      ${
        of.concurrentExceptions?.length > 0 &&
        html`<details><summary>${of.concurrentExceptions.length} at the same time</summary>
          ${of.concurrentExceptions.map((other, i) => html`<${Failure} key=${i} of=${other} isOpen=${false} />`)}
          </details>`
      }
    </article>
  `;
}
