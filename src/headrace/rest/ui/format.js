// How sizes, times and counts are written. Pure functions; Flink writes "not known" as -1 or null, here it is a dash.

export const UNKNOWN = "–";
const LAST_DATE = 8.64e15; // the largest time that Date can hold; watermarks go beyond it at the end of the input

const known = (value) => value !== null && value !== undefined && value >= 0;
const short = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? short(value) : Math.round(value)} ${units[unit]}`;
}

export function duration(ms) {
  if (!known(ms)) return UNKNOWN;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  const [days, hours, minutes] = [
    Math.floor(seconds / 86_400),
    Math.floor(seconds / 3600) % 24,
    Math.floor(seconds / 60) % 60,
  ];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${seconds % 60} s`;
}

const WHOLE = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const count = (value) => (known(value) ? WHOLE.format(Math.round(value)) : UNKNOWN);
export const compact = (value) => (known(value) ? COMPACT.format(value) : UNKNOWN);
export const rate = (value) => (known(value) ? `${COMPACT.format(value)}/s` : UNKNOWN);
export const percent = (share) => (known(share) ? `${Math.round(share * 100)} %` : UNKNOWN);
export const yesNo = (value) => (value ? "yes" : "no");

const two = (number) => String(number).padStart(2, "0");

export function clock(ms) {
  if (!known(ms) || ms > LAST_DATE) return UNKNOWN;
  const date = new Date(ms);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function day(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

// The time of day, with the date unless it is today's.
export function time(ms, now = Date.now()) {
  if (!known(ms) || ms > LAST_DATE) return UNKNOWN;
  return day(ms) === day(now) ? clock(ms) : `${day(ms)} ${clock(ms)}`;
}

export const isEndOfInput = (watermark) => watermark > LAST_DATE;

export function watermark(ms) {
  if (ms === null || ms === undefined || ms < -LAST_DATE) return UNKNOWN;
  if (isEndOfInput(ms)) return "end of input";
  return ms < 0 ? new Date(ms).toISOString() : time(ms);
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

// A JSON value as one line that people read; strings keep their quotes, so that "1" and 1 differ.
export const json = (value) => (value === undefined ? UNKNOWN : JSON.stringify(value));
