// What can be done to a job. Each action is confirmed in a dialog, runs in the driver, and tells its result.

import { plural } from "./format.js";
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { finished, path, send } from "./rest.js";

const directory = (name) =>
  html`<label>Directory <input name=${name} placeholder="as configured" autocomplete="off"
    spellcheck=${false} /></label>`;
const format = () => html`
  <label>Format
    <select name="formatType">
      <option value="CANONICAL">canonical: Parquet, readable without Headrace</option>
      <option value="NATIVE">native: files of the state backend, faster</option>
    </select>
  </label>
`;

const DRAIN = "Drain: fire all event-time timers and windows first. Do so only if the job is not to be continued.";

const operation = (jid, kind) => (accepted) => finished(path`/jobs/${jid}/${kind}/${accepted["request-id"]}`);
const filled = (form) => Object.fromEntries([...form].filter(([, value]) => value !== ""));

// Each: what the button and the dialog say, the fields of its form, the request that a filled form becomes, the result.
export const ACTIONS = [
  {
    name: "Checkpoint",
    question: "Take a checkpoint now?",
    about: "The job runs on. The checkpoint is incremental if the job is configured so.",
    run: (jid) =>
      send("POST", path`/jobs/${jid}/checkpoints`, { checkpointType: "CONFIGURED" }).then(
        operation(jid, "checkpoints"),
      ),
    done: (result) => `Checkpoint ${result.checkpointId} is complete.`,
  },
  {
    name: "Full checkpoint",
    question: "Take a full checkpoint now?",
    about: "The job runs on. The whole state is written again, and the chain of incremental checkpoints starts over.",
    run: (jid) =>
      send("POST", path`/jobs/${jid}/checkpoints`, { checkpointType: "FULL" }).then(operation(jid, "checkpoints")),
    done: (result) => `Full checkpoint ${result.checkpointId} is complete.`,
  },
  {
    name: "Savepoint",
    question: "Take a savepoint now?",
    about: "The job runs on. A savepoint belongs to you: the job never deletes it.",
    fields: () => html`${directory("target-directory")}${format()}`,
    run: (jid, form) => send("POST", path`/jobs/${jid}/savepoints`, filled(form)).then(operation(jid, "savepoints")),
    done: (result) => `The savepoint is at ${result.location}.`,
  },
  {
    name: "Rescale",
    question: "Rescale the job?",
    about: "The job takes a checkpoint, stops, and starts again from it with the new parallelism.",
    fields: (job) =>
      html`<label>Parallelism <input name="parallelism" type="number" min="1"
        max=${job.maxParallelism > 0 ? job.maxParallelism : undefined}
          defaultValue=${Math.max(1, ...job.vertices.map((vertex) => vertex.parallelism))} required /></label>`,
    run: (jid, form) =>
      send("PATCH", `${path`/jobs/${jid}/rescaling`}?parallelism=${encodeURIComponent(form.get("parallelism"))}`).then(
        operation(jid, "rescaling"),
      ),
    done: (_, form) => `The job runs with parallelism ${form.get("parallelism")}.`,
  },
  {
    name: "Stop",
    question: "Stop the job with a savepoint?",
    about:
      "The job ends when its savepoint is complete, and can be started again from there: nothing is lost or repeated.",
    fields: () =>
      html`${directory("targetDirectory")}${format()}<label class="check">
        <input name="drain"
          type="checkbox" /> ${DRAIN}</label>`,
    run: (jid, form) =>
      send("POST", path`/jobs/${jid}/stop`, { ...filled(form), drain: form.get("drain") === "on" }).then(
        operation(jid, "savepoints"),
      ),
    done: (result) => `The job has stopped. Its savepoint is at ${result.location}.`,
    risk: true,
  },
  {
    name: "Cancel",
    question: "Cancel the job?",
    about: "The job ends at once, without a savepoint. What happened since its last checkpoint is lost.",
    run: (jid) => send("PATCH", `${path`/jobs/${jid}`}?mode=cancel`),
    done: () => "The job is being cancelled.",
    confirm: "Cancel the job",
    dismiss: "Keep it running",
    risk: true,
  },
];

const RUNS = new Set(["RUNNING", "RESTARTING", "INITIALIZING", "CREATED", "FAILING"]);

// The buttons of a job; `report(message, tone)` tells what became of an action and returns a function that replaces it.
export function Actions({ job, report }) {
  const [asked, setAsked] = useState(null);
  const confirm = async (action, form) => {
    const replace = report(`${action.name} of ${job.name}: the driver works on it.`, "busy");
    try {
      replace(action.done(await action.run(job.jid, form), form), "good");
    } catch (error) {
      replace(`${action.name} of ${job.name} failed: ${error.message}`, "bad");
    }
  };
  const ended = !RUNS.has(job.state);
  return html`
    <div class="actions" role="group" aria-label="Actions">
      ${ACTIONS.map(
        (action) =>
          html`<button key=${action.name} class=${action.risk ? "risk" : ""} disabled=${ended}
          onClick=${() => setAsked(action)}>${action.name}</button>`,
      )}
    </div>
    ${asked && html`<${Confirmation} action=${asked} job=${job} confirm=${confirm} close=${() => setAsked(null)} />`}
  `;
}

function Confirmation({ action, job, confirm, close }) {
  const dialog = useRef(null);
  useLayoutEffect(() => {
    const leave = () => dialog.current.close(); // by the browser's way back
    dialog.current.showModal();
    addEventListener("hashchange", leave);
    return () => removeEventListener("hashchange", leave);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    dialog.current.close(); // gives the focus back to the button that opened it
    confirm(action, form);
  };
  return html`
    <dialog ref=${dialog} onClose=${close} aria-labelledby="question">
      <form onSubmit=${submit}>
        <h2 id="question">${action.question}</h2>
        <p>Job <b>${job.name}
        </b>, ${plural(job.vertices.length, "vertex", "vertices")}, ${String(job.state).toLowerCase()}.</p>
        <p>${action.about}</p>
        ${action.fields?.(job)}
        <footer>
          <button type="button" onClick=${() => dialog.current.close()}>${action.dismiss ?? "Back"}</button>
          <button class=${action.risk ? "risk primary" : "primary"}>${action.confirm ?? action.name}</button>
        </footer>
      </form>
    </dialog>
  `;
}

// Messages about actions: [messages, report, dismiss].
export function useReports() {
  const [messages, setMessages] = useState([]);
  const next = useRef(0);
  const dismiss = (number) => setMessages((old) => old.filter((one) => one.number !== number));
  const report = (text, tone) => {
    next.current += 1;
    const number = next.current;
    setMessages((old) => [...old, { number, text, tone }]);
    return (text, tone) =>
      setMessages((old) => old.map((one) => (one.number === number ? { number, text, tone } : one)));
  };
  return [messages, report, dismiss];
}

export function Reports({ messages, dismiss }) {
  return html`
    <section class="reports" aria-live="polite" aria-label="Results of actions">
      ${messages.map(
        ({ number, text, tone }) =>
          html`<p key=${number} class=${tone}><span>${text}</span>
          <button aria-label="Dismiss" onClick=${() => dismiss(number)}>×</button></p>`,
      )}
    </section>
  `;
}
