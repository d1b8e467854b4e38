// How the page is connected: what its looks and streams report, as one state that is always visible.
import { mark, put } from "./dom.js";

const reports = new Map();
const WORDS = { live: "Live", connecting: "Connecting…", waiting: "Reconnecting…", paused: "Paused" };
const WORST_FIRST = ["waiting", "connecting", "paused", "live"];

/** Says how one source stands: connecting, live, waiting (lost, and tried again) or paused; null: it is no more. */
export function report(source, state) {
  if (state === null) reports.delete(source);
  else reports.set(source, state);
  draw();
}

/** A new view connects in an instant: that the old one is gone, and the new one not there yet, is not worth a word. */
const PATIENCE_MS = 700;
let timer = null;

function draw() {
  clearTimeout(timer);
  const states = new Set(reports.values());
  const state = WORST_FIRST.find((each) => states.has(each)) ?? "";
  if (state === "connecting" || state === "") timer = setTimeout(() => write(state), PATIENCE_MS);
  else write(state);
}

function write(state) {
  const place = document.getElementById("link-state");
  mark(place, "data-state", state || null);
  put(place, WORDS[state] ?? "");
}

/** Seconds before the next try after a number of failures: 1, 2, 4 … 15, so that a starting service is not flooded. */
export const pauseAfter = (failures) => Math.min(15, 2 ** Math.max(0, failures - 1));
