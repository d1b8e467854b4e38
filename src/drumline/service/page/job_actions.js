// What can be done with a job: cancel, again, again from its checkpoint, compare, remove its texts.
import { asProblem, ask, jobPath, newKey } from "./api.js";
import { announce, el, show } from "./dom.js";
import { hasEnded } from "./format.js";
import { isSilent, jobAddress } from "./job_rows.js";
import { confirmed } from "./parts.js";

/** Buttons of a job; done() is called after a change, failed(problem) where there was none. */
export function jobActions(id, mayChange, done, failed) {
  const button = (text, kind, run, question) =>
    el("button", { type: "button", class: kind, hidden: true, on: { click: () => act(text, run, question) } }, text);
  let silent = false;
  const cancel = button("Cancel", "danger", cancelJob, () => [
    "Cancel this job?",
    silent
      ? "Its machine does not answer, and cannot be asked to save: the job ends as lost, once and for all."
      : "What runs is asked to save and stop; it can be gone on with later from where it stood.",
    "Cancel the job",
  ]);
  const retry = button("Retry", "", () => again(false));
  const resume = button("Retry from checkpoint", "", () => again(true));
  const forget = button("Delete texts", "danger", deleteTexts, () => [
    "Delete the texts of this job?",
    "The texts that came with it, what was prepared of them, and answers to them are removed for good. It cannot be " +
      "retried then.",
    "Delete texts",
  ]);
  const compare = el("a", { class: "button", href: `#/history?with=${encodeURIComponent(id)}` }, "Compare");
  const buttons = [cancel, retry, resume, forget];

  async function act(text, run, question) {
    if (question && !(await confirmed(...question()))) return;
    for (const each of buttons) each.disabled = true;
    try {
      await run();
      announce(`${text}: done`);
      document.querySelector("h1").focus(); // the button may be gone now
      done();
    } catch (error) {
      failed(asProblem(error));
    } finally {
      for (const each of buttons) each.disabled = false;
    }
  }

  function cancelJob() {
    return ask(jobPath(id, "/cancel"), { method: "POST" });
  }

  async function again(fromCheckpoint) {
    const body = { from_checkpoint: fromCheckpoint };
    const job = await ask(jobPath(id, "/retry"), { method: "POST", body, headers: { "Idempotency-Key": newKey() } });
    location.hash = jobAddress(job.id);
  }

  function deleteTexts() {
    return ask(jobPath(id, "/data"), { method: "DELETE" });
  }

  return {
    whole: el("div", { class: "row actions" }, cancel, retry, resume, compare, forget),
    /** Shows those that fit. A button that is pressed stays where it is until there is an answer. */
    set(job, numCheckpoints) {
      const ended = hasEnded(job);
      silent = isSilent(job);
      show(cancel, mayChange && !ended && (job.state !== "stopping" || silent));
      show(retry, mayChange && ended);
      show(resume, mayChange && ended && numCheckpoints > 0);
      show(forget, mayChange && ended && job.kind !== "train");
    },
  };
}
