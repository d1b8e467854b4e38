// Rows of jobs, as the lists of queue and history show them.
import { el, keyed, put, show } from "./dom.js";
import { bytes, count, duration, hasEnded, integer, number, percent, rate, STATES, title, when } from "./format.js";
import { badge, bar, setBadge, setBar } from "./parts.js";

export const jobAddress = (id) => `#/jobs/${encodeURIComponent(id)}`;

/** Name and link of a job, with its tags. */
export function fillName(cell, job) {
  if (!cell.firstChild) {
    cell.append(el("a", { href: jobAddress(job.id) }), el("span", { class: "sub" }), el("span", { class: "tags" }));
  }
  const [link, under, tags] = cell.children;
  put(link, title(job));
  put(under, title(job) === job.model_name || !job.model_name ? job.id : job.model_name);
  keyed(
    tags,
    job.tags,
    (tag) => tag,
    (tag) => el("span", { class: "tag" }, tag),
    () => null,
  );
}

export function fillState(cell, job) {
  if (!cell.firstChild) cell.append(badge(job.state));
  setBadge(cell.firstChild, job.state);
}

/** Share of the updates, or of the rows of a prediction, that are done, 0 to 1; null where nobody knows. */
export function shareOf(job) {
  const { step, num_steps: all, rows_done: done, rows_total: rows } = job.progress;
  if (predicts(job)) return rows > 0 ? done / rows : null;
  return all > 0 && step !== null ? step / all : null;
}

/** Whether nobody looks after it, as its machine does not answer. */
export const isSilent = (job) => job.reason === "node_silent" && !hasEnded(job);

export const predicts = (job) => job.kind === "infer";

/** Bar, updates and time left; of a queued job what it waits for, of an ended one why it ended. */
export function fillProgress(cell, job) {
  if (!cell.firstChild) cell.append(bar("Progress"), el("span", { class: "sub" }));
  const [line, words] = cell.children;
  const share = shareOf(job);
  show(line, share !== null);
  if (share !== null) setBar(line, share, percent(share));
  put(words, progressWords(job));
}

/** Why a job waits, and its place in the queue of the machine. */
export function waitWords(job) {
  const why = job.waits_for || "Waits for its turn";
  return job.position ? `Place ${integer(job.position)} in the queue: ${why}` : why;
}

function progressWords(job) {
  if (job.state === "queued") return waitWords(job);
  if (hasEnded(job)) return job.state === "succeeded" ? "" : firstSentence(job.message);
  if (isSilent(job)) return "Its machine does not answer";
  const { step, num_steps: all, eta_s: left } = job.progress;
  if (predicts(job)) return rowWords(job);
  if (step === null) return job.state === "starting" ? "Starts" : "No update yet";
  const steps = all ? `${number(step)} of ${count(all, "update")}` : count(step, "update");
  return left === null ? steps : `${steps}, ${duration(left)} left`;
}

function rowWords(job) {
  const { rows_done: done, rows_total: all, eta_s: left } = job.progress;
  if (!known(done)) return job.state === "starting" ? "Starts" : "Reads its rows";
  const rows = known(all) ? `${integer(done)} of ${count(all, "row")}` : count(done, "row");
  return known(left) ? `${rows}, ${duration(left)} left` : rows;
}

const known = (value) => value !== null && value !== undefined;

const firstSentence = (text) => (text.length > 140 ? `${text.slice(0, 139)}…` : text);

/** What a job asks for, in words. */
export function askedDevices({ devices, min_devices: min, max_devices: max, memory_bytes: memory }) {
  const number = min !== null ? `${min} to ${max}` : devices === "auto" ? "all that are free" : String(devices);
  return memory ? `${number}, each with ${bytes(memory)} free` : number;
}

/** What a job holds, in words for a table's cell. */
export const heldDevices = ({ devices }) =>
  devices.length > 2 ? count(devices.length, "device") : devices.map(shortDevice).join(", ") || "–";

/** GPU-1234abcd-… -> GPU-1234abcd, as an address of a table's cell. */
export const shortDevice = (id) => (id.startsWith("GPU-") ? id.slice(0, 12) : id);

export const lossOf = (job) => number(job.progress.loss);
export const bestLossOf = (job) => number(job.best_loss);
export const timeOf = (job) => duration(job.training_time ?? job.progress.elapsed_s);
export const rateOf = (job) => rate(job.progress.units_per_s, job.progress.unit);
export const created = (job) => when(job.created_at);

/** State filter of a list: [[value, words]…]. */
export const stateOptions = (states) => states.map((state) => [state, STATES[state]]);
