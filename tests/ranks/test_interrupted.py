"""A signal to one rank, at any moment: all ranks save the same step and end within two updates.

Many moments by hand, in a minute or two: python -m tests.ranks.test_interrupted 50
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from drumline import StepInfo, Trainer
from drumline.engine.checkpoint import read_checkpoint
from drumline.errors import Interrupted
from drumline.launcher.notices import noting
from drumline.manifest import check
from drumline.parallel.strategy import Batch, Loss
from drumline.rundir import read_json, read_lines
from tests.rank_pool import RankPool
from tests.ranks.sharded import FSDP
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model

LONGEST_S = 0.5
"""Of a signal at random, after the start or after the first update: some come in an evaluation or a save."""
FROM_START = 0.25
"""Share of the signals that are counted from the start; most of those come before the first update."""
SLOW_S = 0.02
"""What each fsync of a save takes more."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass(frozen=True)
class Plan:
    """When rank 1 gets which signal."""

    directory: str
    moment: str
    """start, evaluation, save, or a number of seconds."""
    from_start: bool = False
    """Whether the seconds are those since the start; else since the first update."""
    number: signal.Signals = signal.SIGTERM
    kind: str = "ddp"
    rank: int = 1


@dataclass(frozen=True)
class Seen:
    """What a rank came to."""

    reason: str
    sent_at: int | None
    """Updates that it had ended when the signal was sent; None: none was sent."""
    ended_at: int
    handlers_are_back: bool


class Sender:
    """Sends this rank its signal, once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._is_timed = plan.moment[0].isdigit()
        self._lock = threading.Lock()
        self.step = 0
        self.sent_at: int | None = None

    def send(self, moment: str) -> None:
        with self._lock:
            if moment == self._plan.moment and self.sent_at is None and os.environ["RANK"] == str(self._plan.rank):
                self.sent_at = self.step
                os.kill(os.getpid(), self._plan.number)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Inside, the signal may come at its time."""
        timer = threading.Timer(float(self._plan.moment) if self._is_timed else 0.0, self.send, [self._plan.moment])
        self._timer = timer
        if self._is_timed and self._plan.from_start:
            timer.start()
        yield
        if timer.ident is not None:
            timer.join()

    def note(self, trainer: Trainer, info: StepInfo) -> None:
        self.step = info.step
        if self._is_timed and not self._plan.from_start and info.step == 1:
            self._timer.start()
        if any(Path(self._plan.directory, "checkpoints").glob(".step_*")):
            self.send("save")


class Task(MaskedRegression):
    """Sends the signal in the middle of an evaluation."""

    def __init__(self, sender: Sender) -> None:
        super().__init__([])
        self._sender = sender

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        if not torch.is_grad_enabled() and self._sender.step:
            self._sender.send("evaluation")
        return super().loss(outputs, batch)


FSYNC = os.fsync


def slow_fsync(descriptor: int) -> None:
    """Stands in for a slow disk."""
    time.sleep(SLOW_S)
    FSYNC(descriptor)


def run_until_stopped(plan: Plan) -> Seen:
    """An endless run with evaluations and saves, which only the signal ends."""
    sections: dict[str, Any] = {
        "train": {"global_batch": 8, "max_steps": 1_000_000},
        "evaluate": {"every": 3, "batch": 1},
        "checkpoint": {"every": 4, "at_end": False},
        "parallel": FSDP if plan.kind == "fsdp" else {"kind": "ddp", "timeout_s": 20},
    }
    before = [signal.getsignal(number) for number in SIGNALS]
    sender, reason = Sender(plan), ""
    given: dict[str, Any] = {"loss": Task(sender), "eval_data": MaskedRows(11), "callbacks": [sender.note]}
    with ExitStack() as stack:
        stack.enter_context(mock.patch("os.fsync", slow_fsync))
        # As `drumline train` has it from the start of a worker on.
        stack.enter_context(noting([number.name for number in SIGNALS]))
        stack.enter_context(sender.timed())
        config = config_of(Case(plan.directory, sections))
        trainer = stack.enter_context(Trainer(make_model(), config, MaskedRows(37), **given))
        sender.send("start")
        try:
            trainer.fit()
        except Interrupted as stop:
            reason = stop.reason
    handlers_are_back = before == [signal.getsignal(number) for number in SIGNALS]
    return Seen(reason, sender.sent_at, sender.step, handlers_are_back)


def check_stopped(plan: Plan, answers: list[Seen]) -> None:
    run = Path(plan.directory)
    [step] = {answer.ended_at for answer in answers}
    sent_at = answers[plan.rank].sent_at
    assert sent_at is not None and sent_at <= step <= sent_at + 2
    assert {answer.reason for answer in answers} == {f"interrupted by {plan.number.name}"}
    assert all(answer.handlers_are_back for answer in answers)
    end = read_json(run / "exit.json")
    assert (end["exit_status"], end["reason"], end["steps"]) == (3, "interrupted", step)
    saved = run / f"checkpoints/step_{step}"
    assert check(saved) == []
    assert read_checkpoint(saved)["progress"]["step"] == step
    assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]
    *_, last = read_lines(run / "events.jsonl")
    assert last["event"] == "interrupted"


def at_random(seed: int, directory: str) -> Plan:
    draw = random.Random(seed)
    kind = "fsdp" if seed % 5 == 4 else "ddp"
    moment = f"{draw.uniform(0, LONGEST_S):.3f}"
    return Plan(directory, moment, draw.random() < FROM_START, draw.choice(SIGNALS), kind, draw.randrange(2))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("moment", ["start", "evaluation", "save"])
def test_a_signal_at_a_bad_moment(ranks: RankPool, tmp_path: Path, moment: str, kind: str) -> None:
    plan = Plan(fresh(tmp_path), moment, kind=kind)
    check_stopped(plan, ranks.run(2, run_until_stopped, plan))


@pytest.mark.parametrize("seed", range(5))
def test_a_signal_at_any_moment(ranks: RankPool, tmp_path: Path, seed: int) -> None:
    plan = at_random(seed, fresh(tmp_path))
    check_stopped(plan, ranks.run(2, run_until_stopped, plan))


def main(num_seeds: int) -> None:
    """Seeds 0 to num_seeds - 1, one line each; raises at the first that is wrong."""
    pool = RankPool()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for seed in range(num_seeds):
                plan = at_random(seed, str(Path(folder) / f"run-{seed}"))
                answers = pool.run(2, run_until_stopped, plan)
                check_stopped(plan, answers)
                where = f"after update {answers[plan.rank].sent_at}, saved {answers[0].ended_at}"
                print(f"seed {seed}: {plan.kind}, {plan.number.name} to rank {plan.rank} {where}", flush=True)
    finally:
        pool.close()


if __name__ == "__main__":
    from tests.ranks import test_interrupted  # by its own name, so that the ranks find it

    test_interrupted.main(int(sys.argv[1]))
