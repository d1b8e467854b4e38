// Asks again and again, one request at a time, and rests while nobody looks.
import { asProblem } from "./api.js";
import { pauseAfter, report } from "./link.js";

const GAP = 3; // tries that may fail before it is more than a gap

/**
 * Calls load({signal}) every seconds() and hands the answer to done(answer), a Problem to failed(problem).
 * Gives {stop(), now()}: now() asks at once, such as after a change.
 */
export function poll(seconds, load, done, failed) {
  const source = {};
  let stopped = false;
  let timer = null;
  let failures = 0;
  let abort = null;
  let known = false;

  async function turn() {
    if (stopped) return;
    clearTimeout(timer);
    if (abort) abort.abort();
    const mine = new AbortController();
    abort = mine;
    let pause = null;
    try {
      const answer = await load({ signal: mine.signal });
      if (stopped || abort !== mine) return;
      failures = 0;
      known = true;
      report(source, "live");
      done(answer);
    } catch (error) {
      if (stopped || abort !== mine) return;
      const problem = asProblem(error);
      failures += 1;
      const lost = problem.status === 0 || problem.status >= 500 || problem.status === 429;
      report(source, lost ? "waiting" : "live");
      // A short gap is told of at the top alone: what is shown stays where it is.
      if (!(known && lost && failures < GAP)) failed(problem);
      pause = problem.retryAfter ?? (lost ? pauseAfter(failures) : Math.max(seconds(), 5));
    }
    if (abort === mine) abort = null;
    if (document.hidden) report(source, "paused");
    else timer = setTimeout(turn, (pause ?? seconds()) * 1000);
  }

  function seen() {
    if (document.hidden) {
      clearTimeout(timer);
    } else if (!abort) turn();
  }

  document.addEventListener("visibilitychange", seen);
  report(source, "connecting");
  turn();
  return {
    now: turn,
    stop() {
      stopped = true;
      clearTimeout(timer);
      if (abort) abort.abort();
      document.removeEventListener("visibilitychange", seen);
      report(source, null);
    },
  };
}
