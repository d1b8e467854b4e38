// Pieces that several views are made of.
import { el, keyed, mark, newId, put, show } from "./dom.js";
import { STATES } from "./format.js";

/** Heading of a view; focus goes to it when the view is opened, so that it is read out. */
export function heading(text, ...beside) {
  return el("div", { class: "view-head" }, el("h1", { tabindex: "-1" }, text), ...beside);
}

/** A titled part of a view. beside: what stands in the line of its title. */
export function card(title, children, { id = null, beside = [] } = {}) {
  const head = el("div", { class: "card-head" }, el("h2", {}, title), beside);
  return el("section", { class: "card", id, "aria-label": title }, head, children);
}

/** A job's state in words, with a colour beside them. */
export function badge(state) {
  const place = el("span", { class: "badge" });
  setBadge(place, state);
  return place;
}

export function setBadge(place, state) {
  mark(place, "data-state", state);
  put(place, STATES[state] ?? state);
}

/** A box that says what is wrong and what to do; hidden until `say` is called. */
export function problemBox() {
  const what = el("p", { class: "problem-what" });
  const fix = el("p", { class: "problem-fix" });
  const list = el("ul");
  const box = el("div", { class: "problem", role: "alert", tabindex: "-1", hidden: true }, what, fix, list);
  return {
    box,
    say(problem, { focus = false } = {}) {
      put(what, problem.message);
      put(fix, problem.fix);
      show(fix, Boolean(problem.fix));
      list.replaceChildren(...problem.errors.map((error) => el("li", {}, errorText(error))));
      show(list, problem.errors.length > 0);
      show(box, true);
      if (focus) box.focus();
    },
    clear: () => show(box, false),
  };
}

/** Where in a request's body a value is that was refused, as settings.epochs. */
export const errorField = (error) => String(error.field ?? "").replace(/^body\./, "");

const errorText = (error) => [errorField(error), error.problem].filter(Boolean).join(": ");

/** Words where there is nothing to show. */
export function emptyBox(text, ...more) {
  return el("div", { class: "empty" }, el("p", {}, text), ...more);
}

/** Grey lines of about the size of what is being loaded, so that nothing jumps. */
export function skeleton(lines = 4) {
  const bars = Array.from({ length: lines }, () => el("span", { class: "bone" }));
  return el("div", { class: "skeleton", role: "status" }, el("span", { class: "unseen" }, "Loading…"), ...bars);
}

/** Terms and values; set(values) fills those named, show(name, false) takes one out. */
export function facts(names, kind = "facts") {
  const list = el("dl", { class: kind });
  const places = {};
  for (const [name, label] of Object.entries(names)) {
    const value = el("dd", {}, "–");
    const pair = el("div", {}, el("dt", {}, label), value);
    places[name] = { pair, value };
    list.append(pair);
  }
  return {
    list,
    set(values) {
      for (const [name, text] of Object.entries(values)) put(places[name].value, text);
    },
    show: (name, visible) => show(places[name].pair, visible),
    value: (name) => places[name].value,
  };
}

/** A bar with its share in words beside it: setBar(bar, 0.4, "40 %"); isHigh: so much that it is worth a look. */
export function bar(label) {
  const fill = el("progress", { max: "1", value: "0", "aria-label": label });
  return el("div", { class: "bar" }, fill, el("span", { class: "bar-text" }));
}

export function setBar(place, share, text, isHigh = false) {
  const fill = place.firstChild;
  const there = typeof share === "number" && Number.isFinite(share);
  const value = there ? Math.min(1, Math.max(0, share)) : 0;
  if (fill.value !== value) fill.value = value;
  mark(fill, "data-level", isHigh ? "high" : null);
  put(place.lastChild, text);
}

/**
 * A table whose rows change in place. columns: [{name, label, number?, cell?(row)}], cell gives an element to fill.
 * On a phone each row is a card, with its labels beside the values. update(rows, keyOf, fill(cells, row)).
 */
export function table(caption, columns) {
  const body = el("tbody", { role: "rowgroup" });
  const head = columns.map((column) =>
    el("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null }, column.label),
  );
  const whole = el(
    "table",
    { role: "table", class: "cards" },
    el("caption", { class: "unseen" }, caption),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...head)),
    body,
  );
  const make = () =>
    el(
      "tr",
      { role: "row" },
      ...columns.map((column) =>
        el("td", {
          role: "cell",
          class: column.number ? "number" : null,
          data: { label: column.label, name: column.name },
        }),
      ),
    );
  return {
    whole: el("div", { class: "scroll" }, whole),
    body,
    update(rows, keyOf, fill) {
      keyed(body, rows, keyOf, make, (line, row) => {
        const cells = {};
        columns.forEach((column, index) => (cells[column.name] = line.children[index]));
        fill(cells, row, line);
      });
    },
  };
}

/** A field with its label, hint and message: {whole, field, problem(text)}. */
export function labelled(label, field, hint = "") {
  const id = newId("field");
  const hintPlace = el("p", { class: "hint", id: `${id}-hint` }, hint);
  const wrong = el("p", { class: "wrong", id: `${id}-wrong` });
  field.id = id;
  field.setAttribute("aria-describedby", `${id}-hint ${id}-wrong`);
  return {
    whole: el("div", { class: "field" }, el("label", { for: id }, label), field, wrong, hintPlace),
    field,
    hint: (text) => put(hintPlace, text),
    problem(text) {
      put(wrong, text ?? "");
      mark(field, "aria-invalid", text ? "true" : null);
    },
  };
}

/** Options of a select: [[value, text]…]. */
export function options(pairs) {
  return pairs.map(([value, text]) => el("option", { value }, text));
}

/** Asks before something that cannot be taken back; resolves to whether it is wanted. Focus returns by itself. */
export function confirmed(question, more, yes) {
  return new Promise((resolve) => {
    const dialog = el("dialog", { class: "ask", "aria-label": question });
    const close = (answer) =>
      el(
        "button",
        { type: "button", class: answer ? "danger" : "quiet", on: { click: () => dialog.close(answer ? "yes" : "") } },
        answer ? yes : "Go back",
      );
    dialog.append(
      el("h2", {}, question),
      el("p", {}, more),
      el("div", { class: "row end" }, close(false), close(true)),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
