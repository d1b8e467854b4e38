// Several runs over each other: their curves on one axis, and what was different about them.
import { ask, asProblem, jobPath, withQuery } from "./api.js";
import { chart, curve } from "./charts.js";
import { currency } from "./currency.js";
import { el, put, show } from "./dom.js";
import { energy, integer, money, STATES, title, when } from "./format.js";
import { bestLossOf, jobAddress, lossOf, rateOf, timeOf } from "./job_rows.js";
import { card, emptyBox, heading, labelled, options, problemBox, skeleton } from "./parts.js";
import { AXES, differing, flat, points, shown, VALUES } from "./records.js";
import { MOST_COMPARED } from "./view_history.js";

const MOST_PAGES = 100; // of 1000 records each: beyond it a curve has far more points than can be seen
const UNLIKE = ["name", "run_dir", "data.cache_dir", "hardware.gpus"]; // differ always, and say nothing

export function open(main, { parts }) {
  const ids = [...new Set((parts[0] ?? "").split(",").filter(Boolean))].slice(0, MOST_COMPARED);
  const back = el(
    "a",
    { class: "button", href: `#/history?with=${ids.map(encodeURIComponent).join(",")}` },
    "Choose other jobs",
  );
  main.append(heading("Compare", back));
  if (ids.length < 2) {
    main.append(el("section", { class: "card" }, emptyBox("Two jobs at least are needed to compare.")));
    return null;
  }
  const problem = problemBox();
  const waiting = el("section", { class: "card" }, skeleton(8));
  main.append(problem.box, waiting);
  const abort = new AbortController();
  let curves = null;
  // Each on its own: one that is gone does not take the others with it.
  Promise.allSettled(ids.map((id) => load(id, abort.signal))).then((results) => {
    if (abort.signal.aborted) return;
    waiting.remove();
    const runs = results.filter((each) => each.status === "fulfilled").map((each) => each.value);
    const bad = results.find((each) => each.status === "rejected");
    if (bad) problem.say(asProblem(bad.reason));
    if (!runs.length) return;
    curves = chart("The chosen value of each run over the chosen axis");
    main.append(curveCard(runs, curves), resultCard(runs), settingsCard(runs));
  });
  return () => {
    abort.abort();
    curves?.close();
  };
}

async function load(id, signal) {
  const [job, config, records] = await Promise.all([
    ask(jobPath(id), { signal }),
    ask(jobPath(id, "/config"), { signal }),
    loadRecords(id, signal),
  ]);
  if (job.gpu_stats?.cost) job.gpu_stats.currency = await currency();
  return { job, settings: flat(config.config ?? config.requested ?? {}), records };
}

async function loadRecords(id, signal) {
  const records = [];
  let after = null;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const piece = await ask(withQuery(jobPath(id, "/metrics"), { after, limit: 1000 }), { signal });
    if (piece.rewritten) records.length = 0; // a resumed run drops the updates that it makes again
    records.push(...piece.records);
    if (piece.done || piece.next === after) break; // a run that goes on is drawn as far as it is
    after = piece.next;
  }
  return records;
}

function curveCard(runs, curves) {
  const there = Object.entries(VALUES).filter(([name]) =>
    runs.some((run) => points(run.records, name, AXES.step).x.length),
  );
  const value = labelled("Value", el("select", {}, options(there.map(([name, each]) => [name, each.words]))));
  const axis = labelled(
    "Over",
    el("select", {}, options(Object.entries(AXES).map(([name, each]) => [name, each.words]))),
  );
  const none = el("p", { class: "muted" }, "No values were recorded.");

  function draw() {
    const name = value.field.value;
    const over = AXES[axis.field.value];
    const panel = {
      title: VALUES[name].words,
      curves: runs.map((run, index) => ({
        name: title(run.job),
        colour: curve(index),
        markers: VALUES[name].kind === "eval",
        ...points(run.records, name, over),
      })),
    };
    curves.draw([panel], { title: over.title });
  }

  for (const each of [value, axis]) each.field.addEventListener("change", draw);
  show(none, !there.length);
  const controls = el("div", { class: "row picks" }, value.whole, axis.whole);
  show(controls, there.length > 0);
  const whole = card("Curves", [none, there.length ? curves.whole : null], { beside: [controls] });
  if (there.length) draw();
  return whole;
}

function headRow(runs) {
  const cells = runs.map((run, index) =>
    el(
      "th",
      { scope: "col" },
      el("span", { class: "swatch", data: { curve: index + 1 }, "aria-hidden": "true" }),
      el("a", { href: jobAddress(run.job.id) }, title(run.job)),
    ),
  );
  return el("thead", {}, el("tr", {}, el("td", {}), ...cells));
}

function sheet(caption, runs, rows) {
  const body = rows.map(([name, values]) =>
    el("tr", {}, el("th", { scope: "row" }, name), ...values.map((text) => put(el("td"), text))),
  );
  const whole = el(
    "table",
    { class: "sheet" },
    el("caption", { class: "unseen" }, caption),
    headRow(runs),
    el("tbody", {}, ...body),
  );
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
}

function resultCard(runs) {
  const row = (name, read) => [name, runs.map((run) => read(run.job))];
  const rows = [
    row("State", (job) => STATES[job.state]),
    row("Best loss", bestLossOf),
    row("Last loss", lossOf),
    row("Updates", (job) => integer(job.progress.step)),
    row("Training time", timeOf),
    row("Rate", rateOf),
    row("Devices", (job) => integer(job.devices.length)),
    row("Energy", (job) => energy(job.gpu_stats?.energy_j || null)),
    row("Cost", (job) => money(job.gpu_stats?.cost || null, job.gpu_stats?.currency)),
    row("Created", (job) => when(job.created_at)),
  ];
  return card("Results", [sheet("Results", runs, rows)], { id: "results" });
}

/** Settings that are not the same in all runs. */
function settingsCard(runs) {
  const all = runs.map((run) => run.settings);
  const names = differing(all).filter((name) => !UNLIKE.includes(name));
  const rows = names.map((name) => [name, all.map((each) => shown(each[name]))]);
  const none = el("p", { class: "muted" }, "None: the settings are the same.");
  return card("Settings that differ", [rows.length ? sheet("Settings that differ", runs, rows) : none], {
    id: "differences",
  });
}
