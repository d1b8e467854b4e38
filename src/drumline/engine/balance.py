"""Shares of each update by the ranks' speeds, measured at start, for unlike GPUs under ddp."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from torch import nn

from drumline.config.parallel import DdpParallel
from drumline.config.schema import RunConfig
from drumline.data.loader import LoaderOptions, Piece, RowLoader
from drumline.data.order import weighted
from drumline.data.seeds import ROWS
from drumline.data.source import Source
from drumline.parallel.groups import Groups
from drumline.parallel.objective import preserved
from drumline.parallel.strategy import MicroBatch, Strategy, Task
from drumline.plan.record import Plan

logger = logging.getLogger("drumline")

WARM_UP, TIMED = 2, 5
"""Passes that are thrown away, in which kernels are chosen and code is compiled, and passes whose median counts."""

NOTICEABLE = 1.05
"""The slowest rank's time over the fastest's from which shares become unequal: equal GPUs differ by less, and the
other ranks wait at most so long for the slowest."""


class Balance(NamedTuple):
    """How updates are shared out."""

    weights: tuple[float, ...] | None
    """By rank, in proportion; None: equal shares."""
    facts: dict[str, Any] | None
    """Of an event `balance`; None where nothing was to be measured."""


def measure_balance(
    strategy: Strategy,
    model: nn.Module,
    source: Source,
    task: Task,
    config: RunConfig,
    plan: Plan,
    groups: Groups,
) -> Balance:
    """Time some passes on every rank, all on the same rows and at the same time, if `parallel.balance` is measured.

    All ranks call it, after the strategy is set up; model and random streams are as before afterwards. Where shares
    cannot follow speeds, they stay equal, and a warning says why.
    """
    settings = config.parallel
    if not isinstance(settings, DdpParallel) or settings.balance == "equal" or groups.world.size == 1:
        return Balance(None, None)
    reason = None
    if source.is_stream:
        reason = "a stream is read as it comes, and cannot be cut by speed"
    elif settings.sync_batch_norm:
        reason = "under sync_batch_norm each forward pass waits for the slowest rank, so that speeds cannot be seen"
    if reason is not None:
        if groups.world.rank == 0:
            logger.warning("parallel.balance is measured, and shares stay equal: %s", reason)
        return Balance(None, {"message": f"shares stay equal: {reason}"})
    with preserved(model, groups.device):
        micro_batch = _first_rows(source, task, config, plan)
        for _ in range(WARM_UP):
            strategy.trial([micro_batch])
        # Together, as in training, and not beside another rank's compiler: ranks may share a host.
        groups.side.exchange("balance")
        passes = [strategy.trial([micro_batch]) for _ in range(TIMED)]
    seconds = groups.side.exchange("speed", median(passes))
    return shared_out(seconds, plan.global_batch)


def shared_out(seconds: Sequence[float], global_batch: int) -> Balance:
    """Shares in proportion to speed; equal ones where the ranks' seconds for the same rows hardly differ."""
    alike = max(seconds) < NOTICEABLE * min(seconds)
    weights = None if alike else tuple(1 / each for each in seconds)
    rows = [len(part) for part in weighted(global_batch, weights or [1.0] * len(seconds))]
    times = ", ".join(f"{1000 * each:.3g}" for each in seconds)
    message = f"{times} ms a pass by rank: {', '.join(map(str, rows))} samples of each update"
    logger.info("balance: %s", message)
    return Balance(weights, {"message": message, "seconds": list(seconds), "rows": rows})


def _first_rows(source: Source, task: Task, config: RunConfig, plan: Plan) -> MicroBatch:
    """As many rows of the first update as one micro-batch has, read in this process."""
    order = source.epoch_order(config.seed, 0, shuffle=config.train.shuffle)
    rows = order[: min(plan.micro_batch, plan.global_batch)].tolist()
    return RowLoader(source, task, LoaderOptions()).read_one(Piece((ROWS, config.seed, 0, 0), rows))
