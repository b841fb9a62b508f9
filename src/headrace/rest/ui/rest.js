// REST: addresses are relative to /ui/, so that the dashboard also works behind a proxy that adds a path.

const BASE = new URL("../v1/", document.baseURI);

export const address = (path) => new URL(path.replace(/^\//, ""), BASE).href;

export class RestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status; // 0: the driver does not answer
  }
}

// A path of which each ${} is one segment: names and ids that come from the job cannot leave it.
export const path = (texts, ...values) =>
  String.raw({ raw: texts }, ...values.map((value) => encodeURIComponent(value)));

const UNSURE_MS = 2_000; // the driver tells its time in whole seconds
let ahead = 0; // of this browser's clock before the driver's, in milliseconds

// The driver's time: the clock of the machine with the browser may be another one.
export const driverNow = () => Date.now() - ahead;

function compareClocks(date) {
  const by = Date.now() - Date.parse(date ?? "");
  if (Math.abs(by - ahead) > UNSURE_MS) ahead = Math.abs(by) > UNSURE_MS ? by : 0;
}

async function request(method, path, body, signal) {
  const headers = { Accept: "application/json" };
  // No page of another site can send this header without being asked first, and then it is refused.
  if (method !== "GET") headers["X-Requested-With"] = "headrace";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const options = { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) };
    answer = await fetch(address(path), { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RestError(0, "The driver does not answer. It may have ended, or the network is down.");
  }
  compareClocks(answer.headers.get("Date"));
  const document = await answer.json().catch(() => null);
  if (!answer.ok) {
    const reasons = Array.isArray(document?.errors) ? document.errors.map(String) : [];
    throw new RestError(
      answer.status,
      reasons.join("\n") || `${method} ${path}: ${answer.status} ${answer.statusText}`,
    );
  }
  return document;
}

export const get = (path, signal) => request("GET", path, undefined, signal);
export const send = (method, path, body) => request(method, path, body);

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Waits for an operation that REST has accepted; its result, or RestError with the reason why it failed.
export async function finished(statusPath, everyMs = 500) {
  for (;;) {
    const { status, operation } = await get(statusPath);
    if (status.id === "COMPLETED") {
      const cause = operation?.["failure-cause"] ?? operation?.failureCause;
      if (cause) throw new RestError(500, cause["stack-trace"] ?? cause.class ?? "The operation failed.");
      return operation ?? {};
    }
    await pause(everyMs);
  }
}
