// What changes by itself: documents of REST that are loaded again, and the stream of a job's events.
import { useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { loads } from "./load.js";
import { address, driverNow, get, path } from "./rest.js";

const POLL_MS = 3_000; // without the event stream
const SUMMARY_MS = 1_000; // counts and summaries of checkpoints are loaded at most this often

// A document of REST: {data, error, loading, reload}. It is loaded again when `version` changes, and every
// `everyMs` if that is given; what was loaded last stays on the screen meanwhile.
export function useDocument(path, version = 0, everyMs = 0) {
  const [state, setState] = useState({ path, data: null, error: null });
  const [again, setAgain] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    let timer = 0;
    const load = async () => {
      try {
        const data = await get(path, abort.signal);
        setState({ path, data, error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        setState((old) => ({ path, data: old.path === path ? old.data : null, error }));
      }
      if (everyMs && !abort.signal.aborted) timer = setTimeout(load, everyMs);
    };
    load();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [path, version, everyMs, again]);
  const current = state.path === path ? state : { data: null, error: null };
  return { ...current, loading: Boolean(path) && !current.data && !current.error, reload: () => setAgain(again + 1) };
}

const EMPTY = {
  job: null,
  error: null,
  loads: new Map(),
  checkpoints: null,
  changes: 0,
  connection: "connecting",
  seen: 0,
};

// The feed of one job: its document, loads and checkpoints, kept up to date by server-sent events, or by polling while
// there are none. `changes` grows with every checkpoint that ends, so that documents about them are loaded again.
export class JobFeed {
  #id;
  #publish;
  #state = EMPTY;
  #source = null;
  #timer = 0;
  #summary = 0;
  #frame = 0;
  #abort = new AbortController();
  #onVisible = () => (document.hidden ? this.#disconnect() : this.#connect());

  constructor(id, publish) {
    this.#id = id;
    this.#publish = publish;
  }

  start() {
    // A browser opens few connections to one host: tabs that are not looked at give theirs back.
    document.addEventListener("visibilitychange", this.#onVisible);
    this.#onVisible();
  }

  stop() {
    document.removeEventListener("visibilitychange", this.#onVisible);
    this.#disconnect();
    this.#abort.abort();
    clearTimeout(this.#summary);
    cancelAnimationFrame(this.#frame);
  }

  #set(change) {
    if (this.#abort.signal.aborted) return;
    this.#state = { ...this.#state, ...change };
    // A stream begins with all that is known, in hundreds of events: the page is drawn once for each frame.
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#publish(this.#state);
    });
  }

  #connect() {
    this.#disconnect();
    this.#load();
    this.#loadCheckpoints();
    const source = new EventSource(address(`events?job=${encodeURIComponent(this.#id)}`));
    this.#source = source;
    const on = (name, handle) => source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
    source.addEventListener("open", () => {
      clearTimeout(this.#timer);
      this.#set({ connection: "live" });
    });
    source.addEventListener("error", () => {
      this.#set({ connection: "polling" });
      this.#poll();
      // The browser tries again by itself unless the answer was a refusal.
      if (source.readyState === EventSource.CLOSED) this.#source = null;
    });
    // Events tell what has changed in a job: they are of use once its document is there.
    on("job", (job) => this.#state.job && job.jid === this.#id && this.#take({ ...this.#state.job, ...job }));
    on("metrics", (metrics) => this.#takeVertices(metrics.vertices ?? metrics));
    on("checkpoint", (checkpoint) => this.#takeCheckpoint(checkpoint));
  }

  #disconnect() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #poll() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      await Promise.all([this.#load(), this.#loadCheckpoints()]);
      if (this.#state.connection !== "live" && !document.hidden && !this.#abort.signal.aborted) this.#poll();
    }, POLL_MS);
  }

  async #load() {
    try {
      this.#take(await get(path`/jobs/${this.#id}`, this.#abort.signal));
    } catch (error) {
      if (!this.#abort.signal.aborted) this.#set({ error });
    }
  }

  async #loadCheckpoints() {
    try {
      this.#set({ checkpoints: await get(path`/jobs/${this.#id}/checkpoints`, this.#abort.signal) });
    } catch (error) {
      // A job that has not started yet has none; the reason is shown where the job is.
      if (!this.#abort.signal.aborted && error.status === 0) this.#set({ error });
    }
  }

  #take(job) {
    this.#set({ job, error: null, seen: Date.now(), loads: loads(job.vertices ?? [], this.#state.loads) });
  }

  #takeVertices(vertices) {
    const { job } = this.#state;
    if (!job || !Array.isArray(vertices)) return;
    // A rescale changes the plan too, which events do not carry.
    const isSame = vertices.every(
      (one, i) => one.id === job.vertices[i]?.id && one.parallelism === job.vertices[i].parallelism,
    );
    if (!isSame) this.#load();
    else this.#take({ ...job, vertices });
  }

  #takeCheckpoint(checkpoint) {
    const { checkpoints } = this.#state;
    if (checkpoints) {
      const next = merged(checkpoints, checkpoint);
      if (next === checkpoints) return;
      this.#set({ checkpoints: next });
    }
    if (checkpoint.status === "IN_PROGRESS" || this.#summary) return;
    this.#summary = setTimeout(() => {
      this.#summary = 0;
      this.#set({ changes: this.#state.changes + 1 });
      this.#loadCheckpoints();
    }, SUMMARY_MS);
  }
}

const CHANGING = ["status", "num_acknowledged_subtasks", "discarded"];

// The checkpoints of a job with one entry of the history added or replaced, newest first; the same if nothing is new.
export function merged(checkpoints, entry) {
  const { history } = checkpoints;
  const at = history.findIndex((one) => one.id === entry.id);
  if (at >= 0 && CHANGING.every((field) => history[at][field] === entry[field])) return checkpoints;
  if (at >= 0) return { ...checkpoints, history: history.with(at, { ...history[at], ...entry }) };
  const behind = history.findIndex((one) => one.id < entry.id);
  return { ...checkpoints, history: history.toSpliced(behind < 0 ? history.length : behind, 0, entry) };
}

export function useJob(id) {
  const [state, setState] = useState(EMPTY);
  useEffect(() => {
    setState(EMPTY);
    const feed = new JobFeed(id, setState);
    feed.start();
    return () => feed.stop();
  }, [id]);
  return state;
}

// The driver's time, again every `everyMs`: for durations that grow on the screen.
export function useNow(everyMs) {
  const [now, setNow] = useState(driverNow());
  useEffect(() => {
    const timer = setInterval(() => setNow(driverNow()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

// [ref, width]: the width of an element in pixels, now and whenever it changes.
export function useWidth(first = 800) {
  const ref = useRef(null);
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.max(200, Math.floor(ref.current.clientWidth)));
    measure(); // before the first paint
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}
