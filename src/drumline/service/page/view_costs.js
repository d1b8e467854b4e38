// What jobs have taken: time of devices, energy and money, by owner, by day, and the jobs that took most.
import { ask, withQuery } from "./api.js";
import { chart, curve } from "./charts.js";
import { el, put, show } from "./dom.js";
import { duration, energy, integer, money, NONE, number, percent } from "./format.js";
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
const MOST_JOBS = 20;

const sumColumns = (name, label) => [
  { name, label },
  { name: "jobs", label: "Jobs", number: true },
  { name: "device", label: "Device hours", number: true },
  { name: "energy", label: "Energy", number: true },
  { name: "cost", label: "Cost", number: true },
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
  const days = chart("Device hours of each day", "bar");
  const body = el(
    "div",
    { class: "body" },
    el("section", { class: "card", "aria-label": "Sums" }, tiles.list),
    card("Device hours by day", [days.whole]),
    el("div", { class: "columns" }, card("By owner", [byOwner.whole]), card("By day", [byDay.whole])),
    card("Newest jobs that took most", [byJob.whole]),
  );
  const none = el(
    "section",
    { class: "card" },
    emptyBox("No job has used a device yet.", el("a", { class: "button main", href: "#/new" }, "Start a fine-tuning")),
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
    const { total, accounts_by_owner: owners, accounts_by_day: everyDay, by_job: jobs, currency } = answer;
    show(body, total.jobs > 0);
    show(none, total.jobs === 0);
    tiles.set({
      jobs: integer(total.jobs),
      device: hours(total.device_s),
      energy: energy(total.energy_j),
      cost: money(total.cost, currency),
      queue: duration(total.queue_p50_s),
      goodput: percent(total.goodput),
    });
    const fill =
      (name) =>
      (cells, [key, sums]) => {
        put(cells[name], key);
        put(cells.jobs, integer(sums.jobs));
        fillSums(cells, sums, currency);
      };
    byOwner.update(Object.entries(owners), ([key]) => key, fill("owner"));
    byDay.update(
      Object.entries(everyDay).sort(([a], [b]) => (a < b ? 1 : -1)),
      ([key]) => key,
      fill("day"),
    );
    // The newest ones are told of; of those the ones that took most.
    const most = [...jobs].sort((a, b) => b.device_s - a.device_s).slice(0, MOST_JOBS);
    byJob.update(
      most,
      (job) => job.job_id,
      (cells, job) => {
        if (!cells.job.firstChild) cells.job.append(el("a", { href: jobAddress(job.job_id) }));
        put(cells.job.firstChild, job.name || job.job_id);
        put(cells.owner, job.owner);
        put(cells.day, job.day);
        fillSums(cells, job, currency);
      },
    );
    drawDays(everyDay);
  }

  function drawDays(everyDay) {
    const x = Object.keys(everyDay).sort();
    const y = x.map((day) => everyDay[day].device_s / 3600);
    days.draw([{ title: "Hours", curves: [{ name: "device hours", unit: "h", colour: curve(0), x, y }] }], {
      title: "Day (UTC)",
      type: "category",
    });
  }

  const look = poll(
    () => 30,
    (choice) => ask(withQuery("multigpu/performance/metrics", { days: period.field.value, limit: 500 }), choice),
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

function fillSums(cells, sums, currency) {
  put(cells.device, hours(sums.device_s));
  put(cells.energy, energy(sums.energy_j || null));
  put(cells.cost, money(sums.cost, currency));
}
