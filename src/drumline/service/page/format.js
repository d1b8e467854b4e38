// Values as people read them, each with its unit. What is not known is a dash.
export const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with about `digits` significant digits, without an exponent where it can be read so. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return NONE;
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return Number(value.toPrecision(digits)).toExponential();
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function integer(value) {
  return known(value) ? Math.round(value).toLocaleString("en") : NONE;
}

/** 0.42 -> 42 % */
export function percent(share) {
  return known(share) ? `${Math.round(share * 100)} %` : NONE;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (!known(value)) return NONE;
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < SIZES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${SIZES[unit]}`;
}

/** 3725 -> 1 h 2 min */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  const exact = Math.max(0, seconds);
  if (exact > 0 && exact < 0.9995) return `${Math.round(exact * 1000)} ms`;
  if (exact > 0 && exact < 9.95) return `${exact.toFixed(1)} s`;
  const whole = Math.round(exact);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(exact / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(exact / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" "); // a locale's may differ from a chart's

/** 2026-11-28 -> 28 Nov 2026 */
export function day(text) {
  const [year, month, number] = text.split("-").map(Number);
  return `${number} ${MONTHS[month - 1]} ${year}`;
}

/** Time of day where it was today, else with the date; in the reader's own zone. */
export function when(text) {
  if (!text) return NONE;
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return NONE;
  const clock = time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  if (time.toDateString() === new Date().toDateString()) return clock;
  return `${day(`${time.getFullYear()}-${time.getMonth() + 1}-${time.getDate()}`)}, ${clock.slice(0, 5)}`;
}

export function rate(value, unit) {
  return known(value) ? `${number(value, 3)} ${unit || "samples"}/s` : NONE;
}

export function energy(joules) {
  if (!known(joules)) return NONE;
  const hours = joules / 3600;
  return hours >= 1000 ? `${number(hours / 1000, 3)} kWh` : `${number(hours, 3)} Wh`;
}

export function money(value, currency) {
  return known(value) ? `${value.toFixed(2)} ${currency || ""}`.trim() : NONE;
}

export function count(value, one, many) {
  return `${integer(value)} ${value === 1 ? one : many || `${one}s`}`;
}

export const STATES = {
  queued: "Queued",
  starting: "Starting",
  running: "Running",
  stopping: "Stopping",
  succeeded: "Succeeded",
  failed: "Failed",
  cancelled: "Cancelled",
  timed_out: "Timed out",
  lost: "Lost",
};
export const ENDED = ["succeeded", "failed", "cancelled", "timed_out", "lost"];
export const ACTIVE = ["queued", "starting", "running", "stopping"];

export const hasEnded = (job) => ENDED.includes(job.state);

/** What a job is called: its name, else the model that it trains, else its id. */
export const title = (job) => job.name || job.model_name || job.id;
