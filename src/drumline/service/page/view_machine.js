// The machine now: each GPU's use, memory, heat, power, health and holder; without GPUs its slots.
import { ask } from "./api.js";
import { el, keyed, mark, put, show } from "./dom.js";
import { bytes, count, duration, NONE, when } from "./format.js";
import { jobAddress, shortDevice } from "./job_rows.js";
import { bar, badge, card, emptyBox, facts, heading, problemBox, setBar, skeleton, table } from "./parts.js";
import { poll } from "./poll.js";

const TILES = {
  devices: "Devices",
  free: "Free",
  running: "Running jobs",
  queued: "Queued jobs",
  memory: "Memory in use",
  power: "Power",
  disk: "Free on disk",
};
const HEALTH = { ok: "Healthy", warn: "Needs care", fail: "Not fit for use", unknown: "Health unknown" };
const HEALTH_STATES = { ok: "healthy", warn: "suspect", fail: "sick", unknown: "unknown" };

export function open(main) {
  const problem = problemBox();
  const checks = el("div", { class: "checks" });
  const waiting = el("section", { class: "card" }, skeleton(6));
  const tiles = facts(TILES, "tiles");
  const summary = el("section", { class: "card", "aria-label": "Summary" }, tiles.list);
  const late = el("p", { class: "note", role: "status", hidden: true });
  const cards = el("div", { class: "gpus" });
  const none = el("section", { class: "card" }, emptyBox(""));
  for (const each of [summary, none]) show(each, false);
  const node = el("span", { class: "muted" });
  const silent = silentCard();
  const head = heading("Machine");
  head.append(node);
  main.append(head, problem.box, checks, waiting, summary, late, cards, none, silent.whole);

  async function load(options) {
    const [stats, resources] = await Promise.all([
      ask("multigpu/stats", options),
      ask("multigpu/resources/status", options),
    ]);
    return { stats, resources };
  }

  function done({ stats, resources }) {
    problem.clear();
    waiting.remove();
    show(summary, true);
    put(node, resources.node);
    silent.set(resources.leases.filter((lease) => lease.run_out));
    tiles.set(tileValues(stats, resources));
    for (const name of ["memory", "power"]) tiles.show(name, stats.gpu_count > 0);
    show(late, Boolean(stats.late));
    put(late, stats.late ? `These values are not of now: ${stats.late}.` : "");
    if (stats.gpu_info.length) keyed(cards, stats.gpu_info, (gpu) => gpu.uuid, gpuCard, fillGpu);
    else keyed(cards, resources.devices, (device) => device.id, slotCard, fillSlot);
    show(none, !cards.childElementCount);
    put(none.firstChild.firstChild, `No device is known: ${stats.gpu_source}.`);
  }

  const look = poll(
    () => 2,
    load,
    done,
    (error) => problem.say(error),
  );
  const health = poll(
    () => 15,
    (options) => ask("multigpu/health", options),
    (answer) =>
      keyed(
        checks,
        answer.checks.filter((check) => check.status !== "ok"),
        (check) => check.name,
        checkNote,
        fillCheck,
      ),
    () => checks.replaceChildren(), // the other look says what is wrong
  );
  return () => {
    look.stop();
    health.stop();
  };
}

/** Leases that nobody has renewed in time, here or on machines that do not answer. */
function silentCard() {
  const rows = table("Leases that have run out", [
    { name: "node", label: "Machine" },
    { name: "device", label: "Device" },
    { name: "job", label: "Job" },
    { name: "owner", label: "Owner" },
    { name: "since", label: "Held since" },
    { name: "expires", label: "Ran out" },
  ]);
  const why = "Nobody has renewed these in time. A device is held all the same until its job has ended.";
  const whole = card("Leases that have run out", [el("p", { class: "muted" }, why), rows.whole]);
  show(whole, false);
  return {
    whole,
    set(leases) {
      show(whole, leases.length > 0);
      rows.update(
        leases,
        (lease) => `${lease.node} ${lease.device}`,
        (cells, lease) => {
          put(cells.node, lease.node);
          put(cells.device, shortDevice(lease.device));
          if (lease.job_id === null) put(cells.job, "of somebody else");
          else if (cells.job.textContent !== lease.job_id)
            cells.job.replaceChildren(el("a", { href: jobAddress(lease.job_id) }, lease.job_id));
          put(cells.owner, lease.owner ?? NONE);
          put(cells.since, when(lease.since));
          put(cells.expires, when(lease.expires));
        },
      );
    },
  };
}

function tileValues(stats, resources) {
  return {
    devices: stats.gpu_count ? count(stats.gpu_count, "GPU") : count(stats.devices_free + stats.devices_held, "slot"),
    free: String(stats.devices_free),
    running: String(resources.jobs.running ?? 0),
    queued: String(resources.queue.total),
    memory: stats.total_memory_bytes ? `${bytes(stats.used_memory_bytes)} of ${bytes(stats.total_memory_bytes)}` : NONE,
    power: watts(stats.power_w),
    disk: bytes(resources.disk.free_bytes),
  };
}

const watts = (value) => (typeof value === "number" ? `${Math.round(value)} W` : NONE);
const degrees = (value) => (typeof value === "number" ? `${Math.round(value)} °C` : NONE);

function checkNote() {
  return el("div", { class: "note", role: "status" }, el("p", { class: "problem-what" }), el("p", { class: "muted" }));
}

function fillCheck(place, check) {
  place.classList.toggle("bad", check.status === "failing");
  put(place.firstChild, check.message);
  put(place.lastChild, check.fix);
}

function meter(label) {
  return el("div", { class: "meter" }, el("span", { class: "muted" }, label), bar(label));
}

function gpuCard(gpu) {
  const name = el("h2", {});
  const health = badge("unknown");
  const card = el(
    "section",
    { class: "card gpu", "aria-label": `GPU ${gpu.gpu_id}` },
    el("div", { class: "gpu-head" }, name, health, el("span", { class: "muted sub" })),
    meter("Use"),
    meter("Memory"),
    meter("Power"),
    meter("Temperature"),
    el("p", { class: "muted findings" }),
    el("p", { class: "holder" }),
  );
  return card;
}

function fillGpu(card, gpu) {
  const [head, use, memory, power, heat, findings, holder] = card.children;
  put(head.children[0], `GPU ${gpu.gpu_id}`);
  mark(head.children[1], "data-state", HEALTH_STATES[gpu.health.status]);
  put(head.children[1], HEALTH[gpu.health.status]);
  put(head.children[2], gpu.name);
  mark(head.children[2], "title", gpu.uuid);
  const used = gpu.gpu_utilization;
  setBar(use.lastChild, used === null ? null : used / 100, used === null ? NONE : `${Math.round(used)} %`);
  const full = gpu.memory_used_bytes / gpu.memory_total_bytes;
  setBar(memory.lastChild, full, `${bytes(gpu.memory_used_bytes)} of ${bytes(gpu.memory_total_bytes)}`, full >= 0.95);
  setBar(
    power.lastChild,
    gpu.power_w / gpu.power_limit_w,
    gpu.power_limit_w ? `${watts(gpu.power_w)} of ${watts(gpu.power_limit_w)}` : watts(gpu.power_w),
  );
  const hot = gpu.temperature_c / (gpu.slowdown_temperature_c ?? 100);
  setBar(heat.lastChild, hot, degrees(gpu.temperature_c), hot >= 0.95);
  put(
    findings,
    [gpu.health.reason, ...(gpu.throttled_by ?? []).map((cause) => `Slowed down: ${cause}`)].filter(Boolean).join(". "),
  );
  show(findings, findings.textContent !== "");
  fillHolder(holder, gpu.held_by, gpu.unavailable_because);
}

/** Who has a device, and since when; of one that nobody has, whether it can be had. */
function fillHolder(place, holder, whyNot) {
  const id = holder?.job_id ?? null;
  const words = id ? heldSince(holder) : (holder?.message ?? whyNot ?? "Free");
  if (place.dataset.job !== (id ?? "")) {
    place.dataset.job = id ?? "";
    place.replaceChildren(
      ...(id ? [el("a", { href: jobAddress(id) }, id), el("span", { class: "muted" })] : [el("span")]),
    );
  }
  put(place.lastChild, words);
}

function heldSince({ owner, since }) {
  const seconds = since ? (Date.now() - new Date(since).getTime()) / 1000 : null;
  return [owner && ` of ${owner}`, seconds !== null && seconds >= 0 && `, for ${duration(Math.round(seconds))}`]
    .filter(Boolean)
    .join("");
}

const slotName = (slot) => `Slot ${slot.id.replace(/^cpu:/, "")}`;

/** A slot of a machine without GPU. */
function slotCard(slot) {
  return el(
    "section",
    { class: "card gpu", "aria-label": slotName(slot) },
    el("div", { class: "gpu-head" }, el("h2", {}), el("span", { class: "muted" }, "for one process, on the CPU")),
    el("p", { class: "holder" }),
  );
}

function fillSlot(card, slot) {
  put(card.firstChild.firstChild, slotName(slot));
  fillHolder(card.lastChild, slot.held_by, slot.unusable_because);
}
