// The form that starts a fine-tuning.
import { asProblem, ask, newKey } from "./api.js";
import { announce, el, put, show } from "./dom.js";
import { bytes, count } from "./format.js";
import { jobAddress } from "./job_rows.js";
import { emptyBox, errorField, heading, labelled, options, problemBox } from "./parts.js";
import { rowsOf } from "./texts.js";

/** Fields of the form by the place that they have in the request, so that a refusal is shown beside its field. */
function formFields() {
  const numberField = (attributes) => el("input", { type: "number", inputmode: "decimal", ...attributes });
  return {
    model_name: labelled(
      "Model",
      el("input", { required: true, maxlength: "4096", autocomplete: "off", spellcheck: "false" }),
      "A name that the service knows, such as gpt2, or a folder below its model roots.",
    ),
    name: labelled(
      "Name",
      el("input", { maxlength: "200", autocomplete: "off" }),
      "To find it again; may be left out.",
    ),
    texts: labelled("Texts", el("textarea", { spellcheck: "false" }), "One text a line."),
    file: labelled(
      "Or a file with texts",
      el("input", { type: "file", accept: ".txt,.json,.jsonl,text/plain,application/json" }),
      ".txt with a text a line, .jsonl, or .json with a list of texts.",
    ),
    "settings.epochs": labelled(
      "Epochs",
      numberField({ min: "1", step: "1", value: "3" }),
      "Times that all texts are seen.",
    ),
    "settings.learning_rate": labelled(
      "Learning rate",
      numberField({ min: "0", step: "any", placeholder: "chosen by model" }),
    ),
    "settings.batch_size": labelled(
      "Batch size",
      numberField({ min: "1", step: "1", placeholder: "chosen by texts" }),
      "Texts an update, over all devices.",
    ),
    max_length: labelled(
      "Longest text",
      numberField({ min: "1", step: "1", placeholder: "chosen by texts" }),
      "In tokens; what is longer is cut.",
    ),
    "resources.devices": labelled(
      "Devices",
      el("input", { value: "auto", inputmode: "numeric", pattern: "auto|[0-9]+", autocomplete: "off" }),
      "A number, or auto for all that are free.",
    ),
    "resources.priority": labelled(
      "Priority",
      numberField({ min: "-100", max: "100", step: "1", value: "0" }),
      "−100 to 100; the higher goes first.",
    ),
    "resources.time_limit_s": labelled("Time limit (min)", numberField({ min: "1", step: "any", placeholder: "none" })),
    parallel: labelled(
      "Spread over devices",
      el(
        "select",
        {},
        options([
          ["auto", "As suits"],
          ["data_parallel", "One process, a thread a GPU"],
          ["distributed", "A process a GPU"],
        ]),
      ),
    ),
    tags: labelled("Tags", el("input", { autocomplete: "off" }), "With commas between them."),
  };
}

export function open(main, { session }) {
  if (session.role === "viewer") {
    main.append(
      heading("New fine-tuning"),
      el(
        "section",
        { class: "card" },
        emptyBox("Your key reads only. Ask for one with the role user to start trainings."),
      ),
    );
    return null;
  }
  const fields = formFields();
  const problem = problemBox();
  const button = el("button", { type: "submit", class: "main" }, "Start fine-tuning");
  const counted = el("p", { class: "muted", role: "status" });
  let fileRows = null;
  let key = newKey(); // the same until it has worked: pressing twice, or a lost answer, does not make two jobs

  const rows = () => fileRows ?? rowsOf(fields.texts.field.value);

  function drawCount() {
    const found = rows();
    const size = new Blob(found.map((each) => (typeof each === "string" ? each : JSON.stringify(each)))).size;
    put(counted, found.length ? `${count(found.length, "text")}, ${bytes(size)}` : "No texts yet");
  }

  async function readFile() {
    const file = fields.file.field.files[0];
    fileRows = null;
    fields.file.problem("");
    if (file) {
      try {
        fileRows = rowsOf(await file.text(), file.name);
      } catch (error) {
        fields.file.problem(error.message);
        fields.file.field.value = "";
      }
    }
    fields.texts.field.disabled = fileRows !== null;
    fields.texts.hint(fileRows ? "The file is taken instead; choose none to type here." : "One text a line.");
    drawCount();
  }

  async function send(event) {
    event.preventDefault();
    problem.clear();
    for (const each of Object.values(fields)) each.problem("");
    const wrong = checked(fields, rows());
    if (wrong.length) {
      for (const [name, text] of wrong) fields[name].problem(text);
      fields[wrong[0][0]].field.focus();
      announce(count(wrong.length, "field needs another value", "fields need other values"));
      return;
    }
    button.disabled = true;
    put(button, "Starting…");
    try {
      const job = await ask("jobs", {
        method: "POST",
        body: requestOf(fields, rows()),
        headers: { "Idempotency-Key": key },
      });
      announce("The fine-tuning is queued");
      location.hash = jobAddress(job.id);
    } catch (error) {
      const told = asProblem(error);
      if (told.status) key = newKey(); // it was refused; another request may follow under another key
      tell(told);
    } finally {
      button.disabled = false;
      put(button, "Start fine-tuning");
    }
  }

  /** Says what was refused: above the form, and beside each field that is named. */
  function tell(told) {
    for (const error of told.errors) {
      const place = errorField(error);
      const name = Object.keys(fields).find((each) => place === each || place.startsWith(`${each}.`));
      if (name) fields[name].problem(error.problem);
    }
    problem.say(told, { focus: true });
  }

  fields.texts.field.addEventListener("input", drawCount);
  fields.file.field.addEventListener("change", readFile);
  main.append(
    heading("New fine-tuning"),
    el(
      "form",
      { class: "form", novalidate: true, on: { submit: send } },
      problem.box,
      ...groups(fields, counted),
      el("div", { class: "row" }, button),
    ),
  );
  drawCount();
  show(problem.box, false);
  return null;
}

function groups(fields, counted) {
  const group = (legend, ...children) =>
    el(
      "fieldset",
      { class: "card" },
      el("legend", { class: "unseen" }, legend),
      el("h2", { "aria-hidden": "true" }, legend),
      ...children,
    );
  const grid = (...names) => el("div", { class: "grid" }, ...names.map((name) => fields[name].whole));
  return [
    group("Model", grid("model_name", "name")),
    group("Data", fields.texts.whole, fields.file.whole, counted),
    group("Training", grid("settings.epochs", "settings.learning_rate", "settings.batch_size", "max_length")),
    group("Machine", grid("resources.devices", "resources.priority", "resources.time_limit_s", "parallel", "tags")),
  ];
}

/** [[field, what is wrong]…] of what need not be sent to be refused. */
function checked(fields, rows) {
  const wrong = [];
  if (!fields.model_name.field.value.trim()) wrong.push(["model_name", "Say which model is to be fine-tuned."]);
  if (!rows.length) wrong.push(["texts", "Paste texts, or choose a file with some."]);
  for (const [name, { field }] of Object.entries(fields)) {
    if (field.type === "number" && !field.validity.valid) wrong.push([name, field.validationMessage]);
  }
  const rate = fields["settings.learning_rate"].field.value;
  if (rate !== "" && Number(rate) <= 0) wrong.push(["settings.learning_rate", "It must be above 0."]);
  if (!/^(auto|[1-9]\d{0,5})$/.test(fields["resources.devices"].field.value.trim())) {
    wrong.push(["resources.devices", "A whole number from 1, or auto."]);
  }
  return wrong;
}

/** The request, without what was left empty: the service chooses that. */
function requestOf(fields, rows) {
  const of = (name) => fields[name].field.value.trim();
  const numbered = (name) => (of(name) === "" ? undefined : Number(of(name)));
  const minutes = numbered("resources.time_limit_s");
  const devices = of("resources.devices");
  return {
    kind: "finetune",
    model_name: of("model_name"),
    name: of("name"),
    texts: rows,
    max_length: numbered("max_length"),
    settings: {
      epochs: numbered("settings.epochs"),
      learning_rate: numbered("settings.learning_rate"),
      batch_size: numbered("settings.batch_size"),
    },
    parallel: of("parallel"),
    resources: {
      devices: devices === "auto" ? devices : Number(devices),
      priority: numbered("resources.priority"),
      time_limit_s: minutes === undefined ? undefined : minutes * 60,
    },
    tags: [
      ...new Set(
        of("tags")
          .split(",")
          .map((tag) => tag.trim())
          .filter(Boolean),
      ),
    ],
  };
}
