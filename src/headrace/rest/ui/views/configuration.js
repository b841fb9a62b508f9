// The options of a job, and what it was started with.
import { html, useState } from "../html.js";
import { useDocument } from "../live.js";
import { Panel, Table, Text, Waiting } from "../parts.js";
import { path } from "../rest.js";

const COLUMNS = [
  { label: "Option", value: ([name]) => name, cell: ([name]) => html`<code>${name}</code>` },
  {
    label: "Value",
    value: ([, value]) => String(value),
    cell: ([, value]) => html`<${Text}>${typeof value === "string" ? value : JSON.stringify(value)}<//>`,
  },
];

// The document of Flink nests options; they are shown as one list.
export function options(data) {
  const conf = data["execution-config"] ?? {};
  const { "user-config": user = {}, ...rest } = conf;
  return [...Object.entries(rest), ...Object.entries(user)];
}

export function Configuration({ feed }) {
  const found = useDocument(path`/jobs/${feed.job.jid}/config`);
  const [text, setText] = useState("");
  const search = html`<label class="search">Search <input type="search" value=${text}
    onInput=${(event) => setText(event.currentTarget.value)} /></label>`;
  return html`<${Waiting} of=${found}>${(data) => html`
    <${Panel} id="options" title="Configuration" extra=${search}>
      <${Table} label="Options"
        rows=${options(data).filter(([name, value]) =>
          `${name} ${String(value)}`.toLowerCase().includes(text.toLowerCase()),
        )} columns=${COLUMNS}
            id=${([name]) => name} none="No option has this in its name or value." />
    <//>
  `}<//>`;
}
