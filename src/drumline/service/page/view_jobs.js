// The queue: what runs and what waits, and why.
import { el, put } from "./dom.js";
import { ACTIVE } from "./format.js";
import { created, fillName, fillProgress, fillState, heldDevices, lossOf, stateOptions } from "./job_rows.js";
import { jobList } from "./job_list.js";
import { emptyBox, heading } from "./parts.js";

const COLUMNS = [
  { name: "name", label: "Job" },
  { name: "state", label: "State" },
  { name: "progress", label: "Progress" },
  { name: "loss", label: "Loss", number: true },
  { name: "devices", label: "Devices" },
  { name: "priority", label: "Priority", number: true },
  { name: "owner", label: "Owner" },
  { name: "created", label: "Created" },
];

export function open(main, { query, session }) {
  const start = () => el("a", { class: "button main", href: "#/new" }, "New fine-tuning");
  const list = jobList({
    parts: "jobs",
    query,
    session,
    name: "Queue and running jobs",
    states: ACTIVE,
    stateChoice: stateOptions(ACTIVE),
    columns: COLUMNS,
    seconds: 2,
    whenEmpty: emptyBox(
      "Nothing runs and nothing waits.",
      el("div", { class: "row" }, start(), el("a", { class: "button", href: "#/history" }, "See what has ended")),
    ),
    fill(cells, job) {
      fillName(cells.name, job);
      cells.name.classList.add("bare");
      fillState(cells.state, job);
      fillProgress(cells.progress, job);
      put(cells.loss, lossOf(job));
      put(cells.devices, heldDevices(job));
      put(cells.priority, job.resources.priority);
      put(cells.owner, job.owner);
      put(cells.created, created(job));
    },
  });
  main.append(heading("Jobs", start()), ...list.whole);
  return list.stop;
}
