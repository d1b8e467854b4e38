"""What all workers of a run agree on, found by the first of them from the first rows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import torch

from drumline.config.inference import BatchingConfig
from drumline.errors import ConfigError
from drumline.infer.budget import WITHOUT_TRIAL, find_budget, may_try
from drumline.infer.ledger import Ledger
from drumline.infer.records import Facts, Predictor, Prepared
from drumline.infer.rows_in_form import RowsInForm
from drumline.infer.tries import WorkerLost, frees_memory, lost

TRIAL = "trial.json"
"""In the ledger's folder: how many workers have begun to try things out on their GPU."""

logger = logging.getLogger("drumline")


class Place(NamedTuple):
    """Where and how batches are run."""

    batching: BatchingConfig
    device: torch.device
    trial: Path
    """The file TRIAL."""


def settle(ledger: Ledger, rows: RowsInForm, predictor: Predictor, place: Place) -> Facts:
    """Agree with all other workers on the facts, and tell the predictor. Raises what `find_facts` raises."""

    def find() -> Facts:
        found = rows.window(0, min(place.batching.window, ledger.num_rows))
        return find_facts(predictor, rows.to_show(found), place)

    facts = ledger.agree(find)
    predictor.settle(facts)
    return facts


def find_facts(predictor: Predictor, rows: list[Prepared], place: Place) -> Facts:
    """`tokens`, and what the predictor finds in the rows of the first window; on a GPU some of them are run.

    Rows without payload only count.

    A row that fails or kills in such a trial is not looked for: there is then none. Raises ConfigError, and WorkerLost
    where the GPU is lost to this process.
    """
    whole = [row for row in rows if row.payload is not None]
    if place.device.type != "cuda":
        return {"tokens": find_budget(predictor, rows, place.batching, place.device), **predictor.survey(whole)}
    if may_try(place.trial):
        try:
            facts = predictor.survey(whole)
            predictor.settle({"tokens": WITHOUT_TRIAL, **facts})
            return {"tokens": find_budget(predictor, rows, place.batching, place.device), **facts}
        except (ConfigError, WorkerLost):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        if not frees_memory():
            raise lost(reason)
    else:
        reason = "workers died at it"
    logger.warning("how large a batch may be was not found by trial: %s; it is %d tokens", reason, WITHOUT_TRIAL)
    tokens = WITHOUT_TRIAL if place.batching.tokens == "auto" else place.batching.tokens
    return {"tokens": tokens, **predictor.survey([])}
