// The page: addresses behind the #, the frame around all views, the theme.
import { Reports, useReports } from "./actions.js";
import { html, render, useEffect, useRef, useState } from "./html.js";
import { Job } from "./views/job.js";
import { Jobs } from "./views/jobs.js";

const parts = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function useAddress() {
  const [address, setAddress] = useState(parts);
  useEffect(() => {
    const change = () => setAddress(parts());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return address;
}

function App() {
  const [first, id, ...rest] = useAddress();
  const [messages, report, dismiss] = useReports();
  const main = useRef(null);
  const isJob = first === "jobs" && id;
  const page = [first, id, rest[0]].join("/");
  const shown = useRef(page);
  const [said, setSaid] = useState("");
  useEffect(() => {
    if (shown.current === page) return undefined; // the browser announces the first page
    shown.current = page;
    scrollTo(0, 0);
    if (!isJob) document.title = "Jobs · Headrace";
    // Focus stays on a link that is still there, and goes to the heading if its link is gone with the old page.
    if (!document.activeElement || document.activeElement === document.body) main.current.querySelector("h1")?.focus();
    const timer = setTimeout(() => setSaid(document.title), 100);
    return () => clearTimeout(timer);
  }, [page]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      main.current.focus();
    }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href="#/">Headrace</a>
      <nav aria-label="Main"><a href="#/" aria-current=${isJob ? undefined : "page"}>Jobs</a></nav>
      <${Theme} />
    </header>
    <main ref=${main} id="main" tabindex="-1">
      ${
        isJob
          ? html`<${Job} key=${id} id=${id} rest=${rest} report=${report} />`
          : first
            ? html`<h1 tabindex="-1">There is no such page</h1><p><a href="#/">See all jobs</a></p>`
            : html`<${Jobs} />`
      }
    </main>
    <p class="hidden" role="status">${said}</p>
    <${Reports} messages=${messages} dismiss=${dismiss} />
  `;
}

// System, light or dark; kept in the browser.
function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const change = (event) => {
    const chosen = event.currentTarget.value;
    setTheme(chosen);
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    try {
      if (chosen === "system") localStorage.removeItem("headrace-theme");
      else localStorage.setItem("headrace-theme", chosen);
    } catch {
      // Storage is switched off: the choice lasts until the page is closed.
    }
  };
  return html`<label class="theme"><span class="hidden">Theme</span><select value=${theme} onChange=${change}>
    <option value="system">System theme</option><option value="light">Light</option>
    <option value="dark">Dark</option></select></label>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
