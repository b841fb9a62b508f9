// The state browser: what the newest completed checkpoint holds, by key or page by page.

import { json, plural } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useDocument } from "../live.js";
import { Empty, Panel, Problem, Table, Text, Waiting } from "../parts.js";
import { get, path } from "../rest.js";

const PAGE = 50;
const address = (jid, one) =>
  `#/jobs/${jid}/state/${encodeURIComponent(one.operator)}/${encodeURIComponent(one.state)}`;

export function StateBrowser({ feed, operator, state }) {
  const { jid } = feed.job;
  const found = useDocument(path`/jobs/${jid}/state`, feed.changes);
  return html`<${Waiting} of=${found}>${({ checkpoint, states }) => {
    const chosen = states.find((one) => one.operator === operator && one.state === state);
    return html`
      <${Panel} id="states" title="States"
        hint=${checkpoint === null ? null : `As checkpoint ${checkpoint} holds them, the newest that is complete.`}>
        <${Table} label="States" rows=${states} columns=${stateColumns(jid, chosen)}
          id=${(one) => `${one.operator} ${one.state}`}
            none=${checkpoint === null ? "No checkpoint has been completed yet." : "The job has no state."} />
      <//>
      ${chosen && html`<${Entries} key=${`${operator} ${state}`} jid=${jid} state=${chosen} />`}
    `;
  }}<//>`;
}

const stateColumns = (jid, chosen) => [
  {
    label: "State",
    value: (one) => one.state,
    cell: (one) =>
      html`<a href=${address(jid, one)} aria-current=${one === chosen ? "true" : undefined}>${one.state}</a>`,
  },
  { label: "Operator", value: (one) => one["operator-name"] },
  { label: "Uid", value: (one) => one.uid ?? null, cell: (one) => one.uid ?? "–" },
  { label: "Kind", value: (one) => one.kind },
  { label: "Key", value: (one) => one.key_type ?? null, cell: (one) => html`<code>${one.key_type ?? "–"}</code>` },
  {
    label: "Value",
    value: (one) => one.value_type ?? null,
    cell: (one) => html`<code>${one.value_type ?? "–"}</code>`,
  },
];

// A key as it was typed: JSON if it is JSON, else a text.
export function keyOf(typed) {
  try {
    JSON.parse(typed);
    return typed;
  } catch {
    return JSON.stringify(typed);
  }
}

// The entries of one key, or of all keys page by page. Pages that were read stay here: a token continues only forwards.
function Entries({ jid, state }) {
  const base = path`/jobs/${jid}/state/${state.operator}/${state.state}`;
  const [key, setKey] = useState(null); // as JSON; null: all
  const [pages, setPages] = useState([]);
  const [current, setCurrent] = useState(0);
  const [wanted, setWanted] = useState({ search: `limit=${PAGE}` });
  const newest = useRef(wanted);
  const want = (request) => {
    newest.current = request;
    setWanted(request);
  };
  const [error, setError] = useState(null);
  useEffect(() => {
    if (!wanted) return undefined;
    const abort = new AbortController();
    // This effect is undone only after the next render: an answer may come when another one is wanted already.
    const stale = () => abort.signal.aborted || newest.current !== wanted;
    get(`${base}?${wanted.search}`, abort.signal)
      .then((page) => {
        if (stale()) return;
        setPages((old) => [...old, page]);
        setError(null);
      })
      .catch((reason) => stale() || setError(reason))
      .finally(() => stale() || want(null));
    return () => abort.abort();
  }, [base, wanted]);
  const ask = (json) => {
    setKey(json);
    setPages([]);
    setCurrent(0);
    want({ search: json === null ? `limit=${PAGE}` : `key=${encodeURIComponent(json)}` });
  };
  const look = (event) => {
    event.preventDefault();
    const typed = new FormData(event.currentTarget).get("key").trim();
    ask(typed === "" ? null : keyOf(typed));
  };
  const page = pages[current];
  const next = () => {
    setCurrent(current + 1);
    if (current + 1 === pages.length) want({ search: `limit=${PAGE}&after=${encodeURIComponent(page.next)}` });
  };
  const isLast = !page || page.next === null || page.next === undefined;
  return html`
    <${Panel} id="entries" title=${`${state.state} of ${state["operator-name"]}`}>
      <form class="look" role="search" onSubmit=${look}>
        <label>Key <input name="key" placeholder=${'a text, or JSON: 42, ["a", 1]'} autocomplete="off"
          spellcheck=${false} /></label>
        <button class="primary">Look up</button>
        ${key !== null && html`<button type="reset" onClick=${() => ask(null)}>All keys</button>`}
      </form>
      <${Problem} error=${error} />
      <div aria-live="polite" aria-busy=${wanted !== null}>
        ${!page && wanted && html`<p class="quiet">Loading</p>`}
        ${
          page &&
          (page.entries.length
            ? html`<${Table} key=${`${key} ${current}`} label="Entries"
              rows=${page.entries.map((entry, i) => ({ ...entry, i }))} columns=${ENTRY_COLUMNS}
                id=${(entry) => entry.i} />`
            : html`<${Empty}>${key === null ? "The state is empty." : `The state has nothing for the key ${key}.`}<//>`)
        }
      </div>
      ${
        key === null &&
        html`<p class="pager">
        <button disabled=${current === 0} onClick=${() => setCurrent(current - 1)}>Previous page</button>
        <span class="quiet">page ${current + 1}${page ? `, ${plural(page.entries.length, "entry", "entries")}` : ""}
        </span>
        <button disabled=${isLast} onClick=${next}>Next page</button>
      </p>`
      }
    <//>
  `;
}

const ENTRY_COLUMNS = [
  { label: "Key", cell: (entry) => html`<${Text}>${json(entry.key)}<//>` },
  {
    label: "Namespace",
    cell: (entry) =>
      entry.namespace === null || entry.namespace === undefined ? "–" : html`<${Text}>${entry.namespace}<//>`,
  },
  {
    label: "Value",
    cell: (entry) =>
      html`<${Text}>${json(entry.value)}<//>${entry.truncated && html` <span class="quiet">(cut)</span>`}`,
  },
];
