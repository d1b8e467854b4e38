"""The loop: windows of an epoch in, one record an update out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from drumline.data.windows import Window
from drumline.engine.evaluate import hold_evaluation, pay_evaluation
from drumline.engine.lines import log_line
from drumline.engine.marks import Turn
from drumline.engine.process import collect_garbage, empty_cache, seed_window
from drumline.engine.records import StepInfo
from drumline.engine.recover import attempted, begin_streams, grow, recut, stand_by
from drumline.engine.run import Interval, Run
from drumline.parallel.strategy import Notes, Scale


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
    pay_evaluation(run)
    run.pulse.step = run.progress.step
    recut(run)
    stand_by(run)
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
    """Run what is left of one epoch, or up to a recovery: it is then begun again from where the run stands.

    All ranks branch on agreed values only.
    """
    progress, generation = run.progress, run.groups.side.generation
    windows = run.feed.epoch(progress.epoch, progress.window)
    window, totals = None, Totals(0, 0, 0)
    run.pulse.at(f"reading window {progress.window} of epoch {progress.epoch}")
    with attempted(run, None) as attempt:
        window = next(windows, None)
        totals, _ = agree(run, "epoch", window, {})
    if attempt.failed:
        del window, windows
        attempt.recover()
        return
    if not totals.rows:
        progress.begin_epoch(progress.epoch + 1)
    while totals.rows and run.reason is None:
        assert window is not None
        epoch, before = progress.epoch, progress.step
        run.marks.begin(run)
        scale = Scale(1 / max(1, totals.units), 1 / max(1, totals.samples))
        turn = Turn(scale, totals.units > 0, max((m.samples for m in window.micro_batches), default=0))
        run.marks.go_on(turn)
        following, next_totals = None, Totals(0, 0, 0)
        with attempted(run, turn) as attempt:
            following, next_totals = take_turns(run, turn, window, windows)
            if turn.runs and not turn.given_up:
                account(run, turn, totals)
                learn_outcomes(run, epoch_ends=progress.epoch > epoch)
        window = None
        if attempt.failed:
            # Before anything else is made, nothing of what failed may be held.
            del windows, following
            if not attempt.recover():
                return
            following = None
        elif turn.given_up:
            return
        epoch_ends = progress.epoch > epoch
        if turn.runs and not turn.accounted:
            account(run, turn, totals)
        info = StepInfo(progress.step, epoch, totals.rows, totals.units)
        if turn.runs or epoch_ends:
            finish_step(run, info, before=before, epoch_ends=epoch_ends)
        del turn, attempt
        grown = grow(run)
        if info.units:
            yield info
        if grown or run.groups.side.generation != generation:
            return
        window, totals = following, next_totals


def take_turns(run: Run, turn: Turn, window: Window, windows: Iterator[Window]) -> tuple[Window | None, Totals]:
    """Passes, agreement and update of each learner in turn; returns the window that follows, and its totals.

    No rank makes a step before all have made the first learner's passes and agreed to go on.
    """
    progress, strategy = run.progress, run.strategy
    first, *others = run.tasks
    is_new = turn.runs and not turn.outcomes
    if is_new:
        if run.profile is not None and not run.marks.again:
            run.profile.before(run)
        strategy.seed(partial(seed_window, run.config.seed, progress.epoch, progress.window, run.first_shard))
        run.groups.side.announce(f"update {progress.step + 1}")
        window.ready()
        parts = run.pulse.through(window.micro_batches, f"update {progress.step + 1}")
        turn.sums.append(strategy.window(first, parts, turn.scale))
    run.pulse.at(f"update {progress.step + is_new}, reading window {progress.window + 1} of epoch {progress.epoch}")
    following = next(windows, None)
    next_totals, notes = agree(run, "update", following, strategy.notes(first) if is_new else {})
    if run.reason is not None and not turn.outcomes:  # what has begun to be committed is gone on with
        turn.given_up = True
        if is_new:
            strategy.discard(first)
        return following, next_totals
    index = progress.window
    if next_totals.rows == 0:  # at once, so that whatever is saved from here on goes on with the next one
        progress.begin_epoch(progress.epoch + 1)
    else:
        progress.window += 1
    if not turn.runs:
        run.event("empty_window", epoch=window.epoch, window=index)
        return following, next_totals
    progress.step += 1
    run.pulse.at(f"update {progress.step}, optimizer step", own=False)
    turn.agreed = True
    if is_new:
        strategy.heed(first, notes)
        update(run, first, turn)
    # A stop is agreed on with the first learner only, so that a window is whole or was never there.
    for name in others[max(0, len(turn.outcomes) - 1) :]:
        take_turn(run, name, turn, window)
    return following, next_totals


def take_turn(run: Run, name: str, turn: Turn, window: Window) -> None:
    """A further learner's passes over the window, and its update."""
    place = f"update {run.progress.step} of {name}"
    turn.phase = "forward or backward"
    turn.streams = begin_streams(turn.streams, run.groups.device)
    run.groups.side.announce(place)
    turn.sums.append(run.strategy.window(name, run.pulse.through(window.micro_batches, place), turn.scale))
    run.strategy.heed(name, run.groups.side.exchange(place, run.strategy.notes(name)))
    update(run, name, turn)


def update(run: Run, name: str, turn: Turn) -> None:
    """Update what this learner trains."""
    turn.phase = "the optimizer step"
    outcome = run.strategy.step(name, run.config.train.max_norm)
    turn.outcomes.append(outcome)
    turn.streams = None
    run.marks.stepped(outcome)


def account(run: Run, turn: Turn, totals: Totals) -> None:
    """Put a window that is through into the log, and its outcomes on their way to the host."""
    for sums, outcome in zip(turn.sums, turn.outcomes, strict=True):
        run.meter.add({**sums, **outcome.sums}, outcome.applied if run.may_skip or run.strategy.may_be_void else None)
    run.pending.push(run.progress.step, turn.outcomes)
    run.marks.again, turn.accounted = False, True
    if run.profile is not None:
        run.profile.after(run)
    run.interval.samples += totals.rows
    run.interval.units += totals.units
    run.progress.since_shrunk += 1
    run.pulse.updated(run.progress.step)


def agree(run: Run, tag: str, following: Window | None, notes: Notes) -> tuple[Totals, Sequence[Notes]]:
    """One message from every rank: the next window's counts, what the strategy must know, and whether to stop."""
    mine: dict[str, Any] = {"notes": notes, **run.asks()}
    run.pulse.at(f"{run.pulse.place.split(',')[0]}, meeting the other ranks", own=False)
    mine["next"] = (following.rows, following.units, following.samples) if following is not None else (0, 0, 0)
    answers = run.groups.side.exchange(tag, mine)
    run.heed(answers)
    totals = Totals(*(sum(column) for column in zip(*(answer["next"] for answer in answers), strict=True)))
    return totals, [answer["notes"] for answer in answers]


def finish_step(run: Run, info: StepInfo, *, before: int, epoch_ends: bool) -> None:
    """What is due after an update: outcomes, log line, evaluation, checkpoint, end.

    before: `progress.step` before the update. What falls on a number of updates is not due again after a skip.
    """
    progress, config = run.progress, run.config
    ends = learn_outcomes(run, epoch_ends=epoch_ends)
    info.step = step = progress.step
    advanced = step > before
    if ends or is_due(config.track.every, step, advanced=advanced, epoch_ends=epoch_ends):
        info.logged = log_line(run, info)
    paused = run.clock()
    if epoch_ends:
        run.strategy.advance("epoch", None)
    evaluates = ends or is_due(config.evaluate.every, step, advanced=advanced, epoch_ends=epoch_ends)
    if run.evaluation_feed is not None and evaluates:
        if run.profile is not None:
            run.profile.finish(run)  # it is of updates alone
        hold_evaluation(run, info)
    if run.save_asked or is_due(config.checkpoint.every, step, advanced=advanced, epoch_ends=epoch_ends):
        run.save_asked = False
        run.checkpoints.save(run)
    run.checkpoints.catch_up(run)
    if epoch_ends:
        run.callbacks.tell("on_epoch_end", info)
    collect_garbage(step if info.logged is None and info.evaluation is None else None)
    if epoch_ends and config.hardware.empty_cache == "epoch":
        empty_cache()
    run.interval.began += run.clock() - paused  # rates are of training alone
    if ends:
        run.reason = run.reason or "done"


def learn_outcomes(run: Run, *, epoch_ends: bool) -> bool:
    """Take in what is known of updates, and all of them where something is due; returns whether the run ends here."""
    run.learn(keep=1 if run.plan.device == "cuda" else 0)
    ends = run_ends(run, epoch_ends=epoch_ends)
    if ends or epoch_ends or any(run.progress.step % every == 0 for every in intervals(run)):
        run.learn(keep=0)
        ends = run_ends(run, epoch_ends=epoch_ends)  # a skipped update is made up for
    return ends


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


def is_due(every: int | str | None, step: int, *, advanced: bool, epoch_ends: bool) -> bool:
    """Whether what is done at an epoch's end, or every so many updates, is done now. A skipped update is none."""
    return advanced and step % every == 0 if isinstance(every, int) else epoch_ends and every == "epoch"
