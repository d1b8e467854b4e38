// One job: where it stands and why, its curves, log, checkpoints and settings.
import { ask, jobPath } from "./api.js";
import { currency } from "./currency.js";
import { announce, el, mark, put, show } from "./dom.js";
import {
  bytes,
  duration,
  hasEnded,
  integer,
  money,
  energy,
  number,
  percent,
  rate,
  STATES,
  title,
  when,
} from "./format.js";
import { jobActions } from "./job_actions.js";
import { jobCharts } from "./job_charts.js";
import { jobLog } from "./job_log.js";
import {
  askedDevices,
  bestLossOf,
  isSilent,
  jobAddress,
  lossOf,
  predicts,
  rateOf,
  shareOf,
  shortDevice,
  timeOf,
  waitWords,
} from "./job_rows.js";
import { badge, bar, card, facts, heading, problemBox, setBadge, setBar, skeleton, table } from "./parts.js";
import { poll } from "./poll.js";

const TILES = {
  updates: "Updates",
  loss: "Loss",
  eval_loss: "Evaluation loss",
  rate: "Rate",
  mfu: "Model FLOPs use",
  elapsed: "Training time",
  left: "Time left",
};
const ROW_TILES = {
  rows: "Rows",
  failed: "Rows with an error",
  rate: "Rate",
  tokens: "Tokens",
  elapsed: "Time",
  left: "Time left",
};
const KINDS = { finetune: "Fine-tuning", train: "Training", infer: "Prediction" };
const FACTS = {
  id: "Id",
  model: "Model",
  kind: "Kind",
  owner: "Owner",
  user_id: "User",
  asked: "Devices asked for",
  held: "Devices held",
  priority: "Priority",
  attempt: "Attempt",
  created: "Created",
  started: "Started",
  ended: "Ended",
  best: "Best loss",
  model_path: "Model folder",
  output: "Answers",
  energy: "Energy",
  cost: "Cost",
  retry_of: "Retry of",
};

export function open(main, { parts, session }) {
  const id = parts[0];
  const state = badge("queued");
  const head = heading("Job");
  const problem = problemBox();
  const waiting = skeleton(8);
  const body = el("div", { class: "body" });
  show(state, false);
  head.firstChild.after(state);
  main.append(head, problem.box, waiting, body);
  let view = null;
  let last = null;

  async function load(options) {
    const job = await ask(jobPath(id), options);
    if (job.gpu_stats?.cost) job.gpu_stats.currency = await currency();
    return job;
  }

  function done(job) {
    problem.clear();
    if (!view) {
      waiting.remove();
      view = bodyOf(
        job,
        session,
        () => look.now(),
        (error) => problem.say(error, { focus: true }),
      );
      body.append(...view.whole);
      head.append(view.actions);
    }
    put(head.firstChild, title(job));
    document.title = `${STATES[job.state]}: ${title(job)} · drumline`;
    show(state, true);
    setBadge(state, job.state);
    if (last && last.state !== job.state) announce(`The job is now: ${STATES[job.state]}`);
    view.set(job, last);
    last = job;
  }

  function failed(error) {
    if (error.status === 404) waiting.remove();
    problem.say(error);
  }

  // What has ended hardly changes: it is asked about seldom.
  const look = poll(
    () => (last && hasEnded(last) ? 15 : 1.5),
    load,
    done,
    failed,
  );
  return () => {
    look.stop();
    view?.stop();
  };
}

function bodyOf(job, session, changed, failed) {
  const mayChange = session.role !== "viewer";
  const actions = jobActions(job.id, mayChange, changed, failed);
  const why = el("div", { class: "note" }, el("p", { class: "why" }), el("p", { class: "muted fix" }));
  const progress = bar("Progress");
  const tiles = facts(predicts(job) ? ROW_TILES : TILES, "tiles");
  const more = facts(FACTS);
  const charts = predicts(job) ? null : jobCharts(job.id);
  const log = jobLog(job.id, { workers: predicts(job) });
  const checkpoints = predicts(job) ? null : checkpointCard(job.id);
  const config = configCard(job.id);
  const standing = el("section", { class: "card standing", "aria-label": "Progress" }, progress, tiles.list);

  function set(now, before) {
    fillWhy(why, now);
    const share = shareOf(now);
    show(standing, predicts(now) ? share !== null : now.progress.step !== null);
    setBar(progress, share, share === null ? "" : percent(share));
    tiles.set(predicts(now) ? rowValues(now) : tileValues(now));
    tiles.show("left", !hasEnded(now));
    more.set(factValues(now));
    for (const [name, text] of Object.entries(factValues(now))) more.show(name, text !== "");
    fillLink(more.value("retry_of"), now.retry_of);
    fillAnswers(more.value("output"), now);
    log.sources(now.log_sources ?? []);
    if (checkpoints === null) {
      const kept = now.state !== "succeeded" && now.progress.rows_done > 0 ? 1 : 0;
      actions.set(now, kept);
      return;
    }
    const saved = checkpoints.update(now, before);
    actions.set(now, saved);
    checkpoints.whenKnown((count) => actions.set(now, count));
  }

  return {
    actions: actions.whole,
    whole: [
      why,
      standing,
      charts?.whole,
      log.whole,
      el("div", { class: "columns" }, card("About", [more.list]), checkpoints?.whole),
      config.whole,
    ].filter(Boolean),
    set,
    stop() {
      charts?.stop();
      log.stop();
    },
  };
}

/** Why it waits, why it ended, and what can be done about it. */
function fillWhy(place, job) {
  const words =
    job.state === "queued" ? waitWords(job) : job.state === "succeeded" ? "" : job.message;
  place.classList.toggle("bad", ["failed", "timed_out", "lost"].includes(job.state) || isSilent(job));
  put(place.firstChild, words);
  const again = isSilent(job) && job.state === "stopping" ? "A cancel of before does not count: cancel it again." : "";
  put(place.lastChild, [job.state === "queued" ? "" : sentence(job.fix), again, job.note].filter(Boolean).join(" "));
  show(place.lastChild, place.lastChild.textContent !== "");
  show(place, place.textContent !== "");
}

/** The service's words do not end in a full stop, as others may follow. */
const sentence = (words) => (words && !/[.!?]$/.test(words) ? `${words}.` : words);

function tileValues(job) {
  const { step, num_steps: all, eval_loss, mfu, eta_s: left } = job.progress;
  return {
    updates: all ? `${integer(step)} of ${integer(all)}` : integer(step),
    loss: lossOf(job),
    eval_loss: number(eval_loss),
    rate: rateOf(job),
    mfu: percent(mfu),
    elapsed: timeOf(job),
    left: duration(left),
  };
}

function rowValues(job) {
  const { rows_done: done, rows_total: all, rows_failed: failed } = job.progress;
  const { rows_per_s: rows, tokens_per_s: tokens, eta_s: left } = job.progress;
  return {
    rows: all ? `${integer(done)} of ${integer(all)}` : integer(done),
    failed: integer(failed),
    rate: rate(rows, "rows"),
    tokens: rate(tokens, "tokens"),
    elapsed: timeOf(job),
    left: duration(left),
  };
}

function factValues(job) {
  const spent = job.gpu_stats ?? {};
  return {
    id: job.id,
    model: job.model_name ?? "",
    kind: KINDS[job.kind],
    owner: job.owner,
    user_id: job.user_id ?? "",
    asked: askedDevices(job.resources),
    held: job.devices.map(shortDevice).join(", "),
    priority: String(job.resources.priority),
    attempt: job.attempt ? String(job.attempt) : "",
    created: when(job.created_at),
    started: job.started_at ? when(job.started_at) : "",
    ended: job.ended_at ? when(job.ended_at) : "",
    best: job.best_loss === null ? "" : bestLossOf(job),
    model_path: job.model_path ?? "",
    output: job.output_path?.split("/").at(-1) ?? "",
    energy: spent.energy_j ? energy(spent.energy_j) : "",
    cost: spent.cost ? money(spent.cost, spent.currency) : "",
    retry_of: job.retry_of ?? "",
  };
}

function fillLink(place, id) {
  if (!id) return;
  if (!place.querySelector("a")) place.replaceChildren(el("a", { href: jobAddress(id) }, id));
}

/** The answers of a job that has predicted, to be saved. */
function fillAnswers(place, job) {
  if (!job.output_path || place.querySelector("a")) return;
  const href = new URL(jobPath(job.id, "/output"), document.baseURI).href;
  place.replaceChildren(el("a", { href, download: "" }, factValues(job).output));
}

/** Checkpoints, asked for as the job saves and when it ends. */
function checkpointCard(id) {
  const rows = table("Checkpoints", [
    { name: "step", label: "Updates" },
    { name: "bytes", label: "Size", number: true },
    { name: "written", label: "Written", number: true },
  ]);
  const none = el("p", { class: "muted" }, "None yet.");
  const whole = card("Checkpoints", [none, rows.whole]);
  const told = [];
  let count = 0;
  let due = 0;
  show(rows.whole, false);

  async function load() {
    const { items } = await ask(jobPath(id, "/checkpoints"));
    count = items.length;
    show(none, count === 0);
    show(rows.whole, count > 0);
    rows.update(
      items,
      (item) => item.step,
      (cells, item) => {
        put(cells.step, integer(item.step));
        put(cells.bytes, bytes(item.bytes));
        put(cells.written, when(item.written_at));
      },
    );
    for (const each of told) each(count);
  }

  return {
    whole,
    whenKnown: (listener) => told.splice(0, told.length, listener),
    update(job, before) {
      const ended = hasEnded(job);
      if (job.note) {
        put(none, job.note); // they are on another machine
        return count;
      }
      if (!before || before.state !== job.state || (!ended && Date.now() >= due)) {
        due = Date.now() + 10000;
        load().catch((error) => put(none, error.message));
      }
      if (ended && !count) put(none, "None was written.");
      return count;
    },
  };
}

/** Settings and plan, asked for when they are opened. */
function configCard(id) {
  const text = el("pre", { class: "config", tabindex: "0", "aria-label": "Settings" }, "Loading…");
  const whole = el("details", { class: "card", id: "config" }, el("summary", {}, "Settings and plan"), text);
  whole.addEventListener("toggle", async () => {
    if (!whole.open) return;
    mark(text, "aria-busy", "true");
    try {
      const { requested, config, plan } = await ask(jobPath(id, "/config"));
      const parts = { "As it was asked for": requested, "As the run has it": config, Plan: plan };
      const shown = Object.entries(parts).filter(([, value]) => value !== null);
      put(text, shown.map(([name, value]) => `# ${name}\n${JSON.stringify(value, null, 2)}`).join("\n\n"));
    } catch (error) {
      put(text, error.message);
    }
    mark(text, "aria-busy", null);
  });
  return { whole };
}
