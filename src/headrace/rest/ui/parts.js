// Parts that several views use.

import { clock, isEndOfInput, percent, time } from "./format.js";
import { Component, html, useLayoutEffect, useRef, useState } from "./html.js";

// ---- words and marks ------------------------------------------------------------------------------------------------

const TONES = {
  RUNNING: "good",
  COMPLETED: "good",
  completed: "good",
  FINISHED: "good",
  RESTARTING: "warn",
  INITIALIZING: "warn",
  STARTING: "warn",
  SCHEDULED: "warn",
  DEPLOYING: "warn",
  RECONCILING: "warn",
  CANCELING: "warn",
  CREATED: "warn",
  IN_PROGRESS: "warn",
  CANCELLING: "warn",
  FAILING: "bad",
  FAILED: "bad",
  pending_or_failed: "warn",
};

const words = (status) => String(status).toLowerCase().replaceAll("_", " ");

// A status: a word, a colour and a mark, so that colour is never the only sign.
export function Status({ of, children }) {
  return html`<span class=${`status ${TONES[of] ?? "plain"}`}>${words(of)}${children}</span>`;
}

export function Time({ of }) {
  if (!(of > 0) || isEndOfInput(of)) return html`<span>–</span>`;
  return html`<time datetime=${new Date(of).toISOString()} title=${new Date(of).toString()}>${time(of)}</time>`;
}

// An address that a document gave; anything but http and https stays text.
export function External({ href, children }) {
  if (!/^https?:\/\//i.test(href ?? "")) return null;
  return html`<a href=${href} target="_blank" rel="noreferrer noopener">${children}
    <span class="hidden"> (opens in a new tab)</span></a>`;
}

export function Problem({ error }) {
  if (!error) return null;
  if (error.status === 401) return html`<${SignIn} />`;
  return html`<p class="problem" role="alert">${error.message}</p>`;
}

function SignIn() {
  return html`
    <form class="panel" action="../login" method="get">
      <h2>The driver asks for its token</h2>
      <p>
        Open the address that the job printed when it started, which carries the token; or run${" "}
        <code>headrace token</code> as the user who runs the driver, and put in here what it prints.
      </p>
      <label>Token <input name="token" type="password" autocomplete="off" required /></label>
      <button class="primary">Sign in</button>
    </form>
  `;
}

// What stands in place of a view until its document is there.
export function Waiting({ of, children }) {
  if (of.data) return html`<${Problem} error=${of.error} />${children(of.data)}`;
  if (of.error) return html`<${Problem} error=${of.error} />`;
  return html`<p class="quiet" role="status">Loading</p>`;
}

export function Empty({ children }) {
  return html`<p class="quiet empty">${children}</p>`;
}

export function Panel({ title, hint, extra, children, id }) {
  return html`
    <section class="panel" aria-labelledby=${id}>
      <header><h2 id=${id}>${title}</h2>${extra}</header>
      ${hint && html`<p class="hint">${hint}</p>`}
      ${children}
    </section>
  `;
}

// Names and values: [[name, value], ...]; null leaves one out.
export function Facts({ of, wide }) {
  return html`<dl class=${wide ? "facts wide" : "facts"}>
    ${of.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Text({ children }) {
  return html`<code class="text">${children}</code>`;
}

// ---- shares of time -------------------------------------------------------------------------------------------------

export const LOADS = [
  ["busy", "busy"],
  ["backPressured", "back-pressured"],
  ["idle", "idle"],
];

// One bar that is divided into busy, back-pressured and idle time.
export function Load({ of, text = true }) {
  if (of?.busy === undefined) return html`<span class="load none" aria-label="no figures yet"></span>`;
  const label = LOADS.map(([name, word]) => `${percent(of[name])} ${word}`).join(", ");
  return html`
    <span class="load" role="img" aria-label=${label} title=${label}>
      ${LOADS.map(([name]) => html`<i class=${name} style=${{ flexGrow: Math.max(of[name], 0) }}></i>`)}
    </span>
    ${
      text &&
      html`<span class="load-text" aria-hidden="true">
        ${percent(of.busy)} busy${of.backPressured >= 0.005 && html`<b>${percent(of.backPressured)} back-pressured</b>`}
        </span>`
    }
  `;
}

export function LoadLegend() {
  return html`<p class="legend">
    ${LOADS.map(([name, word]) => html`<span><i class=${`mark ${name}`}></i>${word}</span>`)}</p>`;
}

export function Sparkline({ of, width = 96, height = 20 }) {
  if (of.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const top = Math.max(...of) || 1;
  const points = of.map(
    (value, i) =>
      `${((i / (of.length - 1)) * width).toFixed(1)},${(height - 1 - (value / top) * (height - 2)).toFixed(1)}`,
  );
  return html`<svg class="spark" width=${width} height=${height} aria-hidden="true">
    <polyline points=${points.join(" ")} /></svg>`;
}

// ---- tables ---------------------------------------------------------------------------------------------------------

// A row is drawn again only if its record, or whether it is open, has changed: an event touches one row of hundreds.
class Row extends Component {
  shouldComponentUpdate({ record, isOpen, columns, stamp }) {
    const now = this.props;
    return record !== now.record || isOpen !== now.isOpen || columns !== now.columns || stamp !== now.stamp || isOpen;
  }

  render({ record, columns, isOpen, toggle, detail, name }) {
    return html`
      <tr class=${isOpen ? "open" : ""}>
        ${
          detail &&
          html`<td class="opener">
            <button class="opener" aria-expanded=${isOpen} aria-label=${`Details of ${name}`} onClick=${toggle}>
            ${isOpen ? "▾" : "▸"}</button></td>`
        }
        ${columns.map((column, i) => {
          const cell = column.cell ? column.cell(record) : column.value(record);
          const kind = column.numeric ? "num" : "";
          return i === 0 ? html`<th scope="row" class=${kind}>${cell}</th>` : html`<td class=${kind}>${cell}</td>`;
        })}
      </tr>
      ${isOpen && html`<tr class="detail"><td colspan=${columns.length + 1}>${detail(record)}</td></tr>`}
    `;
  }
}

// columns: [{label, value(row), cell?(row), numeric?}]; a column with `value` sorts. `id` says which row is which.
// `detail(row)` makes rows open; `stamp` changes when cells depend on more than their row.
export function Table({ label, rows, columns, id, detail, initial = null, stamp, none = "There is nothing to show." }) {
  const [sort, setSort] = useState(initial); // [label, 1 or -1]
  const [open, setOpen] = useState(() => new Set());
  if (!rows.length) return html`<${Empty}>${none}<//>`;
  const by = sort && columns.find((column) => column.label === sort[0]);
  const sorted = by ? rows.toSorted((a, b) => sort[1] * compare(by.value(a), by.value(b))) : rows;
  const toggle = (key) =>
    setOpen((old) => (old.has(key) ? new Set([...old].filter((one) => one !== key)) : new Set([...old, key])));
  const turn = (column) =>
    setSort(sort?.[0] === column.label ? [column.label, -sort[1]] : [column.label, column.numeric ? -1 : 1]);
  return html`
    <div class="scroll" role="group" aria-label=${label} tabindex="0">
      <table>
        <thead><tr>
          ${detail && html`<th class="opener"><span class="hidden">Details</span></th>`}
          ${columns.map((column) => {
            const direction = sort?.[0] === column.label ? sort[1] : 0;
            const order = direction ? (direction > 0 ? "ascending" : "descending") : undefined;
            return html`<th scope="col" class=${column.numeric ? "num" : ""} aria-sort=${order}>
              ${
                column.value
                  ? html`<button class="sort" onClick=${() => turn(column)}>${column.label}<span aria-hidden="true">
                  ${direction > 0 ? " ↑" : direction < 0 ? " ↓" : ""}</span></button>`
                  : column.label
              }
            </th>`;
          })}
        </tr></thead>
        <tbody>
          ${sorted.map((record) => {
            const key = id(record);
            return html`<${Row} key=${key} name=${key} record=${record} columns=${columns} stamp=${stamp}
              detail=${detail} isOpen=${open.has(key)} toggle=${() => toggle(key)} />`;
          })}
        </tbody>
      </table>
    </div>
  `;
}

function compare(a, b) {
  const [isA, isB] = [a !== null && a !== undefined, b !== null && b !== undefined];
  if (!isA || !isB) return isA - isB;
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
}

// Links to the parts of a page, of which one is shown.
export function Tabs({ label, of, current }) {
  const nav = useRef(null);
  useLayoutEffect(() => {
    // On a phone there is no room for all: the current one is brought into view.
    const [list, link] = [nav.current.firstElementChild, nav.current.querySelector("[aria-current]")];
    const show = () => {
      if (link) list.scrollLeft = link.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
    };
    const observer = new ResizeObserver(show);
    observer.observe(list);
    return () => observer.disconnect();
  }, [current]);
  return html`<nav ref=${nav} class="tabs" aria-label=${label}><ul>
    ${of.map(
      ([href, name]) =>
        html`<li key=${href}><a href=${href} aria-current=${href === current ? "page" : undefined}>${name}</a></li>`,
    )}
        </ul></nav>`;
}

export const seenAt = (ms) => (ms ? `last answer at ${clock(ms)}` : "no answer yet");
