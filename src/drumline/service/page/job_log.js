// A job's logs, followed while they grow.
import { jobPath, withQuery } from "./api.js";
import { el, mark, put, show } from "./dom.js";
import { card, options } from "./parts.js";
import { follow } from "./stream.js";
import { streamState } from "./stream_state.js";

const MOST_LINES = 5000; // in the page; all of them are behind the link, page by page

const NOTHING = { live: "Nothing has been written yet.", ended: "Nothing was written." };

/** Section with one of the job's logs; sources(names) says which have been written. workers: of a prediction. */
export function jobLog(id, { workers = false } = {}) {
  const text = el("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
  const source = el("select", { id: "log-source" });
  const followed = el("input", { type: "checkbox", id: "log-follow" });
  const whole = el("a", { target: "_blank", rel: "noopener" }, "As JSON");
  const none = el("p", { class: "muted log-none" });
  const cut = el("p", { class: "muted" });
  const state = streamState();
  followed.checked = true;
  let offered = null;
  let stop = null;
  let standing = "";

  function stands(name, problem) {
    standing = name;
    state.set(name, problem);
    drawNone();
  }

  /** Says why there is no line; one that has ended takes no more room than it needs. */
  function drawNone() {
    const isEmpty = !text.childElementCount;
    put(none, isEmpty ? (NOTHING[standing] ?? "") : "");
    mark(text, "data-ended", standing === "ended");
    show(text, !(isEmpty && standing === "ended"));
  }

  function begin() {
    if (stop) stop();
    empty();
    const path = (query) => withQuery(jobPath(id, "/logs"), { source: source.value, ...query });
    whole.href = new URL(path(), document.baseURI).href;
    stop = follow(path({ tail: MOST_LINES }), add, stands);
  }

  function empty() {
    text.replaceChildren();
    put(cut, "");
  }

  function add(events) {
    const piece = document.createDocumentFragment();
    for (const event of events) {
      if (event.event === "rewritten") {
        piece.replaceChildren();
        empty();
      } else if (event.event === "line") {
        piece.append(el("span", {}, `${visible(JSON.parse(event.data))}\n`));
      }
    }
    text.append(piece);
    const much = text.childElementCount - MOST_LINES;
    for (let index = 0; index < much; index += 1) text.firstChild.remove();
    if (much >= 0) put(cut, `The last ${MOST_LINES.toLocaleString("en")} lines are shown.`);
    drawNone();
    if (followed.checked) text.scrollTop = text.scrollHeight;
  }

  /** Who scrolls up reads: following stops, and begins again at the end. */
  function scrolled() {
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 30;
    if (!atEnd && text.matches(":hover, :focus")) followed.checked = false;
    else if (atEnd) followed.checked = true;
  }

  function sources(names) {
    const numbered = names.map((name) => /^(rank|worker)_(\d+)$/.exec(name)).filter(Boolean);
    if (numbered.length === offered) return; // logs come, and none goes
    offered = numbered.length;
    const chosen = source.value || "command";
    const each = numbered.map(([name, kind, number]) => [name, `${kind === "rank" ? "Process" : "Worker"} ${number}`]);
    const launcher = workers ? [] : [["launcher", "Launcher"]];
    source.replaceChildren(...options([["command", "Command"], ...launcher, ...each]));
    source.value = chosen;
  }

  text.addEventListener("scroll", scrolled, { passive: true });
  source.addEventListener("change", begin);
  followed.addEventListener("change", () => {
    if (followed.checked) text.scrollTop = text.scrollHeight;
  });
  sources([]);
  begin();
  return {
    whole: card("Log", [el("div", { class: "log-place" }, text, none), cut], {
      id: "log",
      beside: [
        state.place,
        el("label", { class: "pick" }, el("span", {}, "Source"), source),
        el("label", { class: "check" }, followed, el("span", {}, "Follow")),
        whole,
      ],
    }),
    sources,
    stop: () => stop(),
  };
}

// Colours of a terminal say nothing here, and a bare carriage return is a line that was drawn over.
const ESCAPES = /\u001b\[[0-9;?]*[A-Za-z]/g;
const visible = (line) =>
  line
    .replace(ESCAPES, "")
    .replace(/^.*\r(?!$)/s, "")
    .replace(/\r$/, "");
