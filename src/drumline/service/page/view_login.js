// Login by key. The key is handed over once; what the browser keeps is a cookie that scripts cannot read.
import { asProblem, ask } from "./api.js";
import { announce, el } from "./dom.js";
import { labelled, problemBox } from "./parts.js";

export function open(main, { enter }) {
  const problem = problemBox();
  const key = labelled(
    "API key",
    el("input", {
      type: "password",
      name: "key",
      autocomplete: "current-password",
      required: true,
      spellcheck: "false",
    }),
    "Made by drumline tokens create; begins with dl_.",
  );
  const button = el("button", { type: "submit", class: "main" }, "Log in");

  async function send(event) {
    event.preventDefault();
    problem.clear();
    key.problem(key.field.value.trim() ? "" : "Enter a key.");
    if (!key.field.value.trim()) {
      key.field.focus();
      return;
    }
    button.disabled = true;
    try {
      await ask("session", { method: "POST", body: { key: key.field.value.trim() } });
      key.field.value = "";
      announce("Logged in");
      await enter();
      document.querySelector("h1")?.focus();
    } catch (error) {
      problem.say(asProblem(error));
      key.field.select();
      key.field.focus();
    } finally {
      button.disabled = false;
    }
  }

  main.append(
    el(
      "form",
      { class: "card login", on: { submit: send }, novalidate: true },
      el("h1", { tabindex: "-1" }, "Log in"),
      problem.box,
      key.whole,
      button,
    ),
  );
  key.field.focus();
}
