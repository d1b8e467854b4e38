// A job's curves on one time axis, growing while it runs.
import { jobPath } from "./api.js";
import { chart, curve } from "./charts.js";
import { el, put, show } from "./dom.js";
import { shortDevice } from "./job_rows.js";
import { gpuUse, points, residentMemory } from "./records.js";
import { card } from "./parts.js";
import { follow } from "./stream.js";
import { streamState } from "./stream_state.js";

const DRAW_EVERY_MS = 400;
const CLOCK = { read: (record) => new Date(record.time * 1000) };

/** Section with loss, rate and GPU use of a job; stop() ends it. */
export function jobCharts(id) {
  const curves = chart("Loss, rate and GPU use over time; the table of progress above has the newest values");
  const none = el("p", { class: "muted chart-none" }, "Loading…");
  const state = streamState();
  const place = el("div", { class: "chart-place" }, none, curves.whole);
  show(curves.whole, false);
  const records = [];
  let timer = null;
  let isDrawn = false;
  let isOver = false;

  function draw() {
    clearTimeout(timer);
    timer = null;
    const panels = panelsOf(records);
    isDrawn = panels.length > 0;
    put(none, isOver ? "No update was recorded." : "No update has been recorded yet.");
    show(none, panels.length === 0);
    show(curves.whole, panels.length > 0);
    if (panels.length) curves.draw(panels, { title: "Time of day", type: "date" });
  }

  function drawSoon() {
    timer ??= setTimeout(draw, DRAW_EVERY_MS);
  }

  const stop = follow(
    jobPath(id, "/metrics"),
    (events) => {
      for (const event of events) {
        if (event.event === "rewritten")
          records.length = 0; // a resumed run drops the updates that it makes again
        else if (event.event === "record") records.push(JSON.parse(event.data));
      }
      if (isDrawn) drawSoon();
      else draw(); // the first ones are not waited with
    },
    (name, problem) => {
      state.set(name, problem);
      isOver = name === "ended";
      if (isOver) draw(); // "Complete" stands beside it
      else if (name === "live") drawSoon();
      else if (name === "refused") put(none, "There is nothing to draw.");
    },
  );
  return {
    whole: card("Curves", [place], { id: "charts", beside: [state.place] }),
    stop() {
      clearTimeout(timer);
      stop();
      curves.close();
    },
  };
}

/** What is drawn of the records: panels that have something to show. */
export function panelsOf(records) {
  const train = points(records, "loss", CLOCK);
  const evaluated = points(records, "eval_loss", CLOCK);
  const rate = points(records, "units_per_s", CLOCK);
  const unit = records.findLast((record) => record.unit)?.unit ?? "samples";
  const gpus = gpuUse(records, CLOCK.read);
  const memory = residentMemory(records, CLOCK.read);
  const panels = [];
  if (train.x.length || evaluated.x.length) {
    panels.push({
      title: "Loss",
      curves: [
        { name: "training", colour: curve(0), ...train },
        { name: "evaluation", colour: curve(1), markers: true, dash: "dot", ...evaluated },
      ].filter((each) => each.x.length),
    });
  }
  if (rate.x.length) {
    panels.push({
      title: `Rate (${unit}/s)`,
      zero: true,
      curves: [{ name: "rate", unit: `${unit}/s`, colour: curve(2), ...rate }],
    });
  }
  if (gpus.length) {
    const shown = gpus.map((each, index) => ({
      ...each,
      name: shortDevice(each.name),
      unit: "%",
      colour: curve(index + 3),
    }));
    panels.push({ title: "GPU use (%)", range: [0, 105], curves: shown });
  } else if (memory.x.length) {
    panels.push({
      title: "Memory of its processes (GiB); no GPU is used",
      zero: true,
      curves: [{ name: "memory", unit: "GiB", colour: curve(3), ...memory }],
    });
  }
  return panels;
}
