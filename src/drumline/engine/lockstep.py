"""Evaluation in step: where a forward pass is a collective, all ranks make equally many, however uneven their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from drumline.engine.gather import gather
from drumline.engine.run import Run
from drumline.parallel.objective import to_device
from drumline.parallel.strategy import MicroBatch


def in_step(run: Run, micro_batches: Iterable[MicroBatch], ends: Callable[[], bool]) -> Iterator[MicroBatch]:
    """The micro-batches; where forward passes are collectives, followed by passes whose results count nothing.

    Those have weight 0 and neither units nor samples. A rank makes them on its last batch, and one that never had a row
    on a batch of another rank's. All ranks come here together then, and leave together: also where `ends`, asked before
    each pass, is true on one of them.
    """
    if not run.strategy.forwards_together:
        for own in micro_batches:
            if ends():
                return
            yield own
        return
    coming, spare = iter(micro_batches), None
    while True:
        micro_batch = next(coming, None)
        spare = micro_batch or spare
        # By rank: whether it has rows for this pass, whether it has a batch at all, and whether it wants to leave.
        mine = [micro_batch is not None, spare is not None, ends()]
        answers = run.groups.side.exchange("evaluation pass", mine)
        if any(wants_to_leave for _, _, wants_to_leave in answers) or not any(has_rows for has_rows, _, _ in answers):
            return
        if not all(has_batch for _, has_batch, _ in answers):
            spare = _lent(run, spare, giver=[has_rows for has_rows, _, _ in answers].index(True))
        assert spare is not None
        yield spare._replace(units=0, samples=0, weight=0) if micro_batch is None else micro_batch


def _lent(run: Run, own: MicroBatch | None, giver: int) -> MicroBatch:
    """A rank's own batch, else the giver's; all ranks call it."""
    gives = own is not None and run.groups.world.rank == giver
    sent = own._replace(batch=to_device(own.batch, torch.device("cpu"))) if own is not None and gives else None
    lent = gather(run.groups, sent, "a batch to take part with")[giver]
    assert lent is not None
    return own if own is not None else lent
