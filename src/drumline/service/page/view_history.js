// What has ended, and the choice of jobs to compare.
import { el, mark, put } from "./dom.js";
import { ENDED, when } from "./format.js";
import { bestLossOf, fillName, fillProgress, fillState, stateOptions, timeOf } from "./job_rows.js";
import { jobList } from "./job_list.js";
import { emptyBox, heading } from "./parts.js";

export const MOST_COMPARED = 6; // as many as there are colours that can be told apart

const COLUMNS = [
  { name: "pick", label: "Compare" },
  { name: "name", label: "Job" },
  { name: "state", label: "State" },
  { name: "progress", label: "Outcome" },
  { name: "best", label: "Best loss", number: true },
  { name: "time", label: "Training time", number: true },
  { name: "gpus", label: "Devices", number: true },
  { name: "owner", label: "Owner" },
  { name: "ended", label: "Ended" },
];

export function open(main, { query, session }) {
  const picked = new Map(
    (query.get("with") ?? "")
      .split(",")
      .filter(Boolean)
      .map((id) => [id, true]),
  );
  const compare = el("a", { class: "button main" }, "Compare");

  function drawPicked() {
    const ready = picked.size >= 2;
    put(compare, picked.size ? (ready ? `Compare ${picked.size} jobs` : "Choose one more") : "Choose jobs to compare");
    mark(compare, "href", ready ? `#/compare/${[...picked.keys()].map(encodeURIComponent).join(",")}` : null);
    mark(compare, "role", ready ? null : "link"); // without an address it would be none
    mark(compare, "aria-disabled", ready ? null : "true");
    for (const box of main.querySelectorAll("td input[type=checkbox]")) {
      box.checked = picked.has(box.value);
      box.disabled = !box.checked && picked.size >= MOST_COMPARED;
    }
  }

  function pick(event) {
    if (event.target.checked) picked.set(event.target.value, true);
    else picked.delete(event.target.value);
    drawPicked();
  }

  const list = jobList({
    parts: "history",
    query,
    session,
    name: "Jobs that have ended",
    states: ENDED,
    stateChoice: stateOptions(ENDED),
    columns: COLUMNS,
    seconds: 10,
    whenEmpty: emptyBox(
      "No job has ended yet.",
      el("a", { class: "button main", href: "#/new" }, "Start a fine-tuning"),
    ),
    fill(cells, job) {
      if (!cells.pick.firstChild) {
        const box = el("input", { type: "checkbox", value: job.id, on: { change: pick } });
        cells.pick.append(el("label", { class: "check" }, box, el("span", { class: "unseen" })));
        box.checked = picked.has(job.id);
        box.disabled = !box.checked && picked.size >= MOST_COMPARED;
      }
      put(cells.pick.querySelector("span"), `Compare ${job.name || job.id}`);
      fillName(cells.name, job);
      cells.name.classList.add("bare");
      fillState(cells.state, job);
      fillProgress(cells.progress, job);
      put(cells.best, bestLossOf(job));
      put(cells.time, timeOf(job));
      put(cells.gpus, job.devices.length || "–");
      put(cells.owner, job.owner);
      put(cells.ended, when(job.ended_at));
    },
  });
  main.append(heading("History", compare), ...list.whole);
  drawPicked();
  return list.stop;
}
