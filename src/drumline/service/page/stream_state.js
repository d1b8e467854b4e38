// How a stream stands, in words beside what it fills.
import { el, mark, put } from "./dom.js";

const WORDS = {
  connecting: "Connecting…",
  live: "Live",
  waiting: "Connection lost, reconnecting…",
  paused: "Paused",
  ended: "Complete",
};

export function streamState() {
  const place = el("span", { class: "muted stream-state", role: "status" });
  return {
    place,
    set(name, problem) {
      mark(place, "data-state", name);
      put(place, name === "refused" ? problem.message : (WORDS[name] ?? name));
    },
  };
}
