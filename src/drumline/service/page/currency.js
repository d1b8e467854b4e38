// In which money costs are told: the service's setting, asked for once, when there is a cost to show.
import { ask, withQuery } from "./api.js";

let asked = null;

/** Its name, as EUR. */
export function currency() {
  asked ??= ask(withQuery("multigpu/performance/metrics", { days: 1, limit: 0 })).then(
    (answer) => answer.currency,
    (error) => {
      asked = null; // the next one asks again
      throw error;
    },
  );
  return asked;
}
