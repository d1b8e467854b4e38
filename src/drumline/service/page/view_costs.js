// What jobs have taken: time of devices, energy and money, by owner, by day, and the jobs that took most.
import { ask, withQuery } from "./api.js";
import { chart, curve } from "./charts.js";
import { el, put, show } from "./dom.js";
import { count, day, duration, energy, integer, money, NONE, number, percent, rate } from "./format.js";
import { jobAddress } from "./job_rows.js";
import { card, emptyBox, facts, heading, labelled, options, problemBox, skeleton, table } from "./parts.js";
import { poll } from "./poll.js";

const TILES = {
  jobs: "Jobs",
  device: "Device time",
  energy: "Energy",
  cost: "Cost",
  queue: "Usual wait",
  goodput: "Goodput",
};
const LISTED = 500; // as many as the service tells of one by one
const MOST_JOBS = 20;

const sumColumns = (name, label) => [
  { name, label },
  { name: "jobs", label: "Jobs", number: true },
  { name: "device", label: "Device hours", number: true },
  { name: "energy", label: "Energy", number: true },
  { name: "cost", label: "Cost", number: true },
  { name: "queue", label: "Usual wait", number: true },
  { name: "rate", label: "Mean rate", number: true },
  { name: "mfu", label: "MFU", number: true },
  { name: "goodput", label: "Goodput", number: true },
];

const hours = (seconds) => (typeof seconds === "number" ? `${number(seconds / 3600, 3)} h` : NONE);

export function open(main) {
  const problem = problemBox();
  const waiting = el("section", { class: "card" }, skeleton(6));
  const tiles = facts(TILES, "tiles");
  const byOwner = table("Costs by owner", sumColumns("owner", "Owner"));
  const byDay = table("Costs by day", sumColumns("day", "Day (UTC)"));
  const byJob = table("Jobs that took most", [
    { name: "job", label: "Job" },
    { name: "owner", label: "Owner" },
    { name: "day", label: "Day (UTC)" },
    { name: "device", label: "Device hours", number: true },
    { name: "energy", label: "Energy", number: true },
    { name: "cost", label: "Cost", number: true },
  ]);
  const fewRated = el("p", { class: "hint" });
  const fewListed = el("p", { class: "hint" });
  const days = chart("Device hours of each day", "bar");
  const body = el(
    "div",
    { class: "body" },
    el("section", { class: "card", "aria-label": "Sums" }, tiles.list, fewRated),
    card("Device hours by day", [days.whole]),
    card("By owner", [byOwner.whole]),
    card("By day", [byDay.whole]),
    card("Newest jobs that took most", [fewListed, byJob.whole]),
  );
  const none = el(
    "section",
    { class: "card" },
    emptyBox("No job has used a device in this time.", el("a", { class: "button main", href: "#/new" }, "Start a fine-tuning")),
  );
  for (const each of [body, none]) show(each, false);
  const period = labelled(
    "Over",
    el(
      "select",
      {},
      options([
        ["7", "7 days"],
        ["30", "30 days"],
        ["366", "a year"],
      ]),
    ),
  );
  period.field.value = "30";
  period.field.addEventListener("change", () => look.now());
  main.append(heading("Costs", el("div", { class: "picks" }, period.whole)), problem.box, waiting, body, none);

  function done(answer) {
    problem.clear();
    waiting.remove();
    const { total, by_owner: owners, by_day: everyDay, by_job: jobs, currency } = answer;
    show(body, total.jobs > 0);
    show(none, total.jobs === 0);
    tiles.set({
      jobs: integer(total.jobs),
      device: hours(total.device_s),
      energy: measured(total),
      cost: money(total.cost, currency),
      queue: duration(total.queue_p50_s),
      goodput: percent(total.goodput),
    });
    const fill =
      (name, shown = (key) => key) =>
      (cells, [key, sums]) => {
        put(cells[name], shown(key));
        put(cells.jobs, integer(sums.jobs));
        fillSums(cells, sums, currency);
        put(cells.queue, duration(sums.queue_p50_s));
        put(cells.rate, rates(sums.units_per_s));
        put(cells.mfu, percent(sums.mfu));
        put(cells.goodput, percent(sums.goodput));
      };
    byOwner.update(Object.entries(owners), ([key]) => key, fill("owner"));
    byDay.update(
      Object.entries(everyDay).sort(([a], [b]) => (a < b ? 1 : -1)),
      ([key]) => key,
      fill("day", day),
    );
    const all = count(total.jobs, "job");
    const rated = `Rates, MFU and goodput are of the newest ${integer(answer.looked_at)} of ${all}. `;
    put(fewRated, answer.truncated ? `${rated}So are costs, where the service has no price.` : "");
    show(fewRated, answer.truncated);
    const shown = Math.min(MOST_JOBS, jobs.length);
    const chosen = `The ${shown} that took most, of the newest ${integer(jobs.length)} of ${all}.`;
    put(fewListed, chosen);
    show(fewListed, shown < total.jobs);
    // The newest ones are told of; of those the ones that took most.
    const most = [...jobs].sort((a, b) => b.device_s - a.device_s).slice(0, MOST_JOBS);
    byJob.update(
      most,
      (job) => job.job_id,
      (cells, job) => {
        if (!cells.job.firstChild) cells.job.append(el("a", { href: jobAddress(job.job_id) }));
        put(cells.job.firstChild, job.name || job.job_id);
        put(cells.owner, job.owner);
        put(cells.day, day(job.day));
        fillSums(cells, job, currency);
      },
    );
    drawDays(everyDay);
  }

  function drawDays(everyDay) {
    const keys = Object.keys(everyDay).sort();
    const x = keys.map(day);
    const y = keys.map((key) => everyDay[key].device_s / 3600);
    days.draw([{ title: "Hours", curves: [{ name: "device hours", unit: "h", colour: curve(0), x, y }] }], {
      title: "Day (UTC)",
      type: "category",
    });
  }

  const look = poll(
    () => 30,
    (choice) => ask(withQuery("multigpu/performance/metrics", { days: period.field.value, limit: LISTED }), choice),
    done,
    (error) => {
      waiting.remove();
      problem.say(error);
    },
  );
  return () => {
    look.stop();
    days.close();
  };
}

/** Energy, and of how much of the time it is where that is not all. */
function measured({ energy_j: joules, measured_device_s: known, device_s: whole }) {
  if (joules === null) return "not measured";
  const share = whole > 0 ? known / whole : 1;
  return share < 0.995 ? `${energy(joules)} (of ${percent(share)} of the time)` : energy(joules);
}

function rates(byUnit) {
  const means = Object.entries(byUnit).map(([unit, mean]) => rate(mean, unit));
  return means.join(", ") || NONE;
}

function fillSums(cells, sums, currency) {
  put(cells.device, hours(sums.device_s));
  put(cells.energy, measured(sums));
  put(cells.cost, money(sums.cost, currency));
}
