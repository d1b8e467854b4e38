"""The loop: windows of an epoch in, one record an update out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from drumline.data.windows import Window
from drumline.engine.checkpoint import save_checkpoint
from drumline.engine.evaluate import evaluate
from drumline.engine.learning import watched_metric
from drumline.engine.lines import log_line, record_evaluation
from drumline.engine.process import collect_garbage, empty_cache, seed_window
from drumline.engine.records import StepInfo
from drumline.engine.run import Interval, Run
from drumline.parallel.strategy import Notes, Outcome, Scale, Sums


class Totals(NamedTuple):
    """What the ranks agree on before a window's first backward pass."""

    rows: int
    """Rows over all shards; 0: the epoch has ended for everybody."""
    units: int
    """Units that the loss sums over."""
    samples: int
    """Samples that auxiliary losses are weighed by."""


def run_updates(run: Run, epochs: int | None) -> Iterator[StepInfo]:
    """Run epochs until the plan's steps, `epochs` more epochs, or an agreed stop."""
    planned = run.config.train.epochs or math.inf
    last_epoch = planned if epochs is None else min(planned, run.progress.epoch + epochs)
    total = math.inf if run.plan.steps is None else run.plan.steps
    if run.config.evaluate.at_start and run.evaluation_feed is not None and run.progress.step == 0:
        first = StepInfo(0, run.progress.epoch, 0, 0)
        first.evaluation = record_evaluation(run, evaluate(run), first.epoch)
        run.callbacks.tell("on_evaluation", first)
    run.interval = Interval(run.clock(), run.feed.waited_s)
    try:
        while run.reason is None and run.progress.epoch < last_epoch and run.progress.step < total:
            yield from run_epoch(run)
        if run.profile is not None:
            run.profile.finish(run)
    except GeneratorExit:
        if run.profile is not None:
            run.profile.close()
        raise
    run.learn(keep=0)
    run.reason = run.reason or "done"


def run_epoch(run: Run) -> Iterator[StepInfo]:
    """Run what is left of one epoch. All ranks branch on agreed values only."""
    progress, strategy = run.progress, run.strategy
    first, *others = run.tasks
    windows = run.feed.epoch(progress.epoch, progress.window)
    window = next(windows, None)
    totals, _ = agree(run, "epoch", window, {})
    if not totals.rows:
        progress.begin_epoch(progress.epoch + 1)
    while totals.rows and run.reason is None:
        assert window is not None
        run_window = totals.units > 0
        if run_window:
            if run.profile is not None:
                run.profile.before(run)
            strategy.seed(partial(seed_window, run.config.seed, progress.epoch, progress.window, run.first_shard))
            run.groups.side.announce(f"update {progress.step + 1}")
            window.ready()
            scale = Scale(1 / totals.units, 1 / totals.samples)
            sums = strategy.window(first, window.micro_batches, scale)
        following = next(windows, None)
        next_totals, notes = agree(run, "update", following, strategy.notes(first) if run_window else {})
        if run.reason is not None:
            if run_window:
                strategy.discard(first)
            return
        epoch, index, epoch_ends = progress.epoch, progress.window, next_totals.rows == 0
        if epoch_ends:  # at once, so that whatever is saved from here on goes on with the next one
            progress.begin_epoch(epoch + 1)
        else:
            progress.window += 1
        if run_window:
            strategy.heed(first, notes)
            progress.step += 1
            outcomes = [update(run, first, sums)]
            # A stop is agreed on with the first learner only, so that a window is whole or was never there.
            outcomes += [take_turn(run, name, window, scale) for name in others]
            run.pending.push(progress.step, outcomes)
            if run.profile is not None:
                run.profile.after(run)
            run.interval.samples += totals.rows
            run.interval.units += totals.units
        else:
            run.event("empty_window", epoch=epoch, window=index)
        info = StepInfo(progress.step, epoch, totals.rows, totals.units)
        if run_window or epoch_ends:
            finish_step(run, info, before=progress.step - run_window, epoch_ends=epoch_ends)
        if run_window:
            yield info
        window, totals = following, next_totals


def update(run: Run, name: str, sums: Sums) -> Outcome:
    """Update what this learner trains, and put its sums into the log."""
    outcome = run.strategy.step(name, run.config.train.max_norm)
    run.meter.add({**sums, **outcome.sums} if outcome.sums else sums, outcome.applied if run.may_skip else None)
    return outcome


def take_turn(run: Run, name: str, window: Window, scale: Scale) -> Outcome:
    """A further learner's passes over the window, and its update."""
    place = f"update {run.progress.step} of {name}"
    run.groups.side.announce(place)
    sums = run.strategy.window(name, window.micro_batches, scale)
    run.strategy.heed(name, run.groups.side.exchange(place, run.strategy.notes(name)))
    return update(run, name, sums)


def agree(run: Run, tag: str, following: Window | None, notes: Notes) -> tuple[Totals, Sequence[Notes]]:
    """One message from every rank: the next window's counts, what the strategy must know, and whether to stop."""
    mine: dict[str, Any] = {"notes": notes, "stop": run.stop_reason}
    mine["next"] = (following.rows, following.units, following.samples) if following is not None else (0, 0, 0)
    answers = run.groups.side.exchange(tag, mine)
    run.reason = run.reason or next((answer["stop"] for answer in answers if answer["stop"]), None)
    totals = Totals(*(sum(column) for column in zip(*(answer["next"] for answer in answers), strict=True)))
    return totals, [answer["notes"] for answer in answers]


def finish_step(run: Run, info: StepInfo, *, before: int, epoch_ends: bool) -> None:
    """What is due after an update: outcomes, log line, evaluation, checkpoint, end.

    before: `progress.step` before the update. What falls on a number of updates is not due again after a skip.
    """
    progress, config = run.progress, run.config
    run.learn(keep=1 if run.plan.device == "cuda" else 0)
    ends = run_ends(run, epoch_ends=epoch_ends)
    if ends or epoch_ends or any(progress.step % every == 0 for every in intervals(run)):
        run.learn(keep=0)
        ends = run_ends(run, epoch_ends=epoch_ends)  # a skipped update is made up for
    info.step = step = progress.step
    advanced = step > before
    if ends or (advanced and step % config.track.every == 0):
        info.logged = log_line(run, info)
    paused = run.clock()
    if epoch_ends:
        run.strategy.advance("epoch", None)
    if run.evaluation_feed is not None and evaluation_is_due(run, advanced, epoch_ends=epoch_ends, ends=ends):
        if run.profile is not None:
            run.profile.finish(run)  # it is of updates alone
        info.evaluation = record_evaluation(run, evaluate(run), info.epoch)
        schedule = config.train.schedule
        value = watched_metric(schedule, info.evaluation) if schedule.interval == "evaluation" else None
        run.strategy.advance("evaluation", value)
        run.callbacks.tell("on_evaluation", info)
    if advanced and config.checkpoint.every is not None and step % config.checkpoint.every == 0:
        save_checkpoint(run)
    if epoch_ends:
        run.callbacks.tell("on_epoch_end", info)
    collect_garbage(step if info.logged is None and info.evaluation is None else None)
    if epoch_ends and config.hardware.empty_cache == "epoch":
        empty_cache()
    run.interval.began += run.clock() - paused  # rates are of training alone
    if ends:
        run.reason = run.reason or "done"


def run_ends(run: Run, *, epoch_ends: bool) -> bool:
    """Whether this update was the run's last."""
    steps, epochs = run.plan.steps, run.config.train.epochs
    last_epoch = epoch_ends and epochs is not None and run.progress.epoch >= epochs
    return last_epoch or (steps is not None and run.progress.step >= steps)


def intervals(run: Run) -> list[int]:
    """Every number of updates after which something is due."""
    config = run.config
    candidates = (config.track.every, config.evaluate.every, config.checkpoint.every)
    return [every for every in candidates if isinstance(every, int)]


def evaluation_is_due(run: Run, advanced: bool, *, epoch_ends: bool, ends: bool) -> bool:
    """Whether the held-out data is evaluated after this update."""
    every = run.config.evaluate.every
    if isinstance(every, int):
        return ends or (advanced and run.progress.step % every == 0)
    return ends or (epoch_ends and every == "epoch")
