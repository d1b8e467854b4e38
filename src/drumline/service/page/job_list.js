// A list of jobs with filters and further pages, as the views of queue and history have it.
import { ask, withQuery } from "./api.js";
import { announce, el, mark, put, show } from "./dom.js";
import { count } from "./format.js";
import { poll } from "./poll.js";
import { emptyBox, labelled, options, problemBox, skeleton, table } from "./parts.js";

/**
 * states: those that the list is about. columns and fill: as parts.table has them. whenEmpty: element shown without
 * jobs. seconds: between two looks. Filters stand in the address, so that it can be sent to somebody.
 */
export function jobList({ parts, query, session, name, states, stateChoice, columns, fill, whenEmpty, seconds }) {
  const limit = { pages: 1 };
  const filters = filterFields(query, stateChoice, session.role === "admin" || session.owner === "*");
  const problem = problemBox();
  const waiting = skeleton(6);
  const rows = table(name, columns);
  const none = emptyBox(
    "No job fits these filters.",
    el("button", { type: "button", on: { click: clear } }, "Clear filters"),
  );
  const total = el("p", { class: "muted", role: "status" });
  const more = el("button", { type: "button", on: { click: () => ((limit.pages += 1), look.now()) } }, "Show more");
  for (const each of [rows.whole, none, whenEmpty, more]) show(each, false);

  async function load(options) {
    const items = [];
    let cursor = null;
    let all = 0;
    for (let page = 0; page < limit.pages; page += 1) {
      const values = { ...filters.values(), cursor, limit: 50 };
      const answer = await ask(
        withQuery("jobs", { ...values, state: values.state ? [values.state] : states }),
        options,
      );
      items.push(...answer.items);
      all = answer.total;
      cursor = answer.next;
      if (!cursor) break;
    }
    return { items, total: all, more: Boolean(cursor) };
  }

  function done(answer) {
    problem.clear();
    waiting.remove();
    const filtered = Object.values(filters.values()).some(Boolean);
    rows.update(answer.items, (job) => job.id, fill);
    show(rows.whole, answer.items.length > 0);
    show(none, answer.items.length === 0 && filtered);
    show(whenEmpty, answer.items.length === 0 && !filtered);
    show(more, answer.more);
    put(total, count(answer.total, "job"));
  }

  function failed(error) {
    waiting.remove();
    problem.say(error);
  }

  function changed() {
    const values = Object.entries(filters.values()).filter(([, value]) => value);
    const text = new URLSearchParams(values).toString();
    // Without a new entry in the history for each letter, and without an event that would open the view anew.
    history.replaceState(null, "", `#/${parts}${text ? `?${text}` : ""}`);
    limit.pages = 1;
    mark(rows.whole, "aria-busy", "true");
    look.now().then(() => {
      mark(rows.whole, "aria-busy", null);
      announce(total.textContent);
    });
  }

  function clear() {
    filters.clear();
    changed();
  }

  let typing = null;
  filters.whole.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(changed, 250);
  });
  filters.whole.addEventListener("submit", (event) => event.preventDefault());
  const look = poll(() => seconds, load, done, failed);
  const list = el("section", { class: "card", "aria-label": name }, waiting, rows.whole, none, whenEmpty);
  return {
    whole: [filters.whole, problem.box, list, el("div", { class: "row" }, total, more)],
    now: look.now,
    stop() {
      clearTimeout(typing);
      look.stop();
    },
  };
}

/** seesAll: whether there are other owners to choose from. */
function filterFields(query, stateChoice, seesAll) {
  const of = (name) => query.get(name) ?? "";
  const fields = {
    q: labelled(
      "Search",
      el("input", { type: "search", value: of("q"), placeholder: "Name, model or id", maxlength: "200" }),
    ),
    state: labelled("State", el("select", {}, options([["", "All"], ...stateChoice]))),
    kind: labelled(
      "Kind",
      el(
        "select",
        {},
        options([
          ["", "All"],
          ["finetune", "Fine-tuning"],
          ["train", "Training"],
          ["infer", "Prediction"],
        ]),
      ),
    ),
    owner: labelled("Owner", el("input", { value: of("owner"), maxlength: "100" })),
    tag: labelled("Tag", el("input", { value: of("tag"), maxlength: "100" })),
  };
  if (!seesAll) delete fields.owner;
  fields.state.field.value = of("state");
  fields.kind.field.value = of("kind");
  for (const field of [fields.state.field, fields.kind.field]) if (field.selectedIndex < 0) field.value = "";
  return {
    whole: el("form", { class: "card filters", role: "search" }, ...Object.values(fields).map((each) => each.whole)),
    values: () => Object.fromEntries(Object.entries(fields).map(([name, each]) => [name, each.field.value.trim()])),
    clear() {
      for (const each of Object.values(fields)) each.field.value = "";
    },
  };
}
