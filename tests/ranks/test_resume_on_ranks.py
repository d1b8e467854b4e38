"""Killed in the middle of an epoch and made again in the same run directory, on as many ranks as before or others."""

from __future__ import annotations

import copy
import logging
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drumline import Loss, Trainer
from drumline.engine.checkpoint import read_checkpoint
from drumline.parallel.strategy import Batch
from drumline.rundir import RunDir, read_json, read_lines
from tests.rank_pool import RankError, RankPool
from tests.ranks.training import (
    LENGTH,
    WIDTH,
    Case,
    MaskedRegression,
    MaskedRows,
    config_of,
    largest_difference,
    make_model,
)

# Five updates an epoch, the last one of five rows; twelve in all.
NUM_ROWS, BATCH, STEPS = 37, 8, 12
CONFIG: dict[str, Any] = {
    "train": {
        "global_batch": BATCH,
        "micro_batch": 2,
        "max_steps": STEPS,
        "optimizer": {"name": "adamw", "weight_decay": 0.1},
        "schedule": {"name": "cosine", "warmup_steps": 2},
        "lr": 0.01,
    },
    "checkpoint": {"every": 1, "keep": None, "asynchronous": False},
}


class Killed(Exception):
    """Stands in for whatever ends a process."""


class NotedRows(MaskedRows):
    """Notes which rows are read, and adds noise of all three streams to them."""

    def __init__(self, dtype: torch.dtype, *, noisy: bool) -> None:
        super().__init__(NUM_ROWS)
        self.reads: list[int] = []
        self._dtype = dtype
        self._noisy = noisy

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.reads.append(index)
        row = super().__getitem__(index)
        if self._noisy:
            row["x"] += random.random() + float(np.random.rand()) + torch.rand(LENGTH, WIDTH, dtype=torch.float64)
        return {name: value.to(self._dtype) if value.is_floating_point() else value for name, value in row.items()}


class Task(MaskedRegression):
    """Notes the rows of each training pass and what is drawn in it; after some passes it ends one rank's process."""

    def __init__(self, after: int | None, *, noisy: bool) -> None:
        super().__init__([])
        self.passes: list[list[int]] = []
        self.draws: list[tuple[float, float, float]] = []
        self._after = after
        self._noisy = noisy

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        if len(self.passes) == self._after:
            raise Killed
        self.passes.append(batch["id"].tolist())
        loss = super().loss(outputs, batch)
        if not self._noisy:
            return loss
        self.draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
        return loss._replace(total=loss.total * (1 + sum(self.draws[-1])))


class Notices(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@dataclass
class Part:
    """What one rank saw of an attempt."""

    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Passes made by the end of each update."""
    passes: list[list[int]] = field(default_factory=list)
    draws: list[tuple[float, float, float]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    loaded: Any = None
    """The state of the optimizer that it began with."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizer: Any = None
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Attempt:
    """Where, with which model, and whether and when rank 1 dies (rank 0, where it is alone)."""

    directory: str
    noisy: bool = False
    dtype: torch.dtype = torch.float64
    kind: str = "auto"
    dies_after: int | None = None


def with_dropout() -> nn.Module:
    torch.manual_seed(9)
    return nn.Sequential(nn.BatchNorm1d(LENGTH), nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, 1)).double()


def attempt(case: Attempt) -> Part:
    """Train in this directory, from whatever is in it, to the end or until a rank dies."""
    part, rows = Part(), NotedRows(case.dtype, noisy=case.noisy)
    model = (with_dropout() if case.noisy else make_model()).to(case.dtype)
    config = config_of(Case(case.directory, CONFIG), parallel={"kind": case.kind, "timeout_s": 20})
    task = Task(None, noisy=case.noisy)
    notices = Notices()
    logging.getLogger("drumline").addHandler(notices)
    try:
        with Trainer(model, config, rows, loss=task) as trainer:
            if case.dies_after is not None and trainer.world.rank == min(1, trainer.world.size - 1):
                task._after = case.dies_after
            part.loaded = moments(trainer)
            for info in trainer.steps():
                assert info.logged is not None
                part.losses.append(info.logged["loss"])
                part.rates.append(info.logged["lr"])
                part.epochs.append(info.epoch)
                part.samples.append(info.samples)
                part.ends.append(len(task.passes))
            part.optimizer = moments(trainer)
            part.weights = trainer._run.strategy.state()["model"]
    finally:
        logging.getLogger("drumline").removeHandler(notices)
    # ddp makes one pass twice, before its first update, to lay out its buckets.
    twice = task.passes[:1] == task.passes[1:2]
    part.passes, part.draws = task.passes[twice:], task.draws[twice:]
    part.ends = [end - twice for end in part.ends]
    part.reads, part.notices = rows.reads, notices.said
    return part


def moments(trainer: Trainer) -> Any:
    """The optimizer's state, whole."""
    return copy.deepcopy(trainer._run.strategy.state()["learners"]["main"]["optimizer"]["state"])


def kill(ranks: RankPool, world: int, case: Attempt) -> int:
    """Begin the run and kill one rank of it; returns the update of its newest checkpoint."""
    with pytest.raises(RankError) as caught:
        ranks.run(world, attempt, case)
    assert "Killed" in {failure.type_name for failure in caught.value.errors.values()}
    checkpoints = RunDir(Path(case.directory)).checkpoints
    return max(int(path.name.removeprefix("step_")) for path in checkpoints.iterdir())


def rows_of(parts: list[Part], updates: range) -> list[int]:
    """All ranks' rows of these updates, in no order."""
    found: list[int] = []
    for part in parts:
        ends = [0, *part.ends]
        found += [row for rows in part.passes[ends[updates.start] : ends[updates.stop]] for row in rows]
    return sorted(found)


def resumed(directory: Path) -> dict[str, Any]:
    """Its only resume event."""
    [event] = [record for record in read_lines(directory / "events.jsonl") if record["event"] == "resume"]
    return event


@pytest.mark.parametrize("step", [1, 3, 5, 6], ids=["first", "mid", "last of epoch", "first of epoch 2"])
def test_the_same_ranks_go_on_with_the_same_bits(ranks: RankPool, tmp_path: Path, whole: list[Part], step: int) -> None:
    """Killed in the next window; also with dropout, BatchNorm and noise of all streams, where each rank's are its own.

    No row is read to be thrown away.
    """
    case = Attempt(str(tmp_path / "run"), noisy=True, dies_after=whole[1].ends[step - 1] + 2)
    assert kill(ranks, 2, case) == step
    rest = ranks.run(2, attempt, Attempt(case.directory, noisy=True))
    for undisturbed, part in zip(whole, rest, strict=True):
        done = undisturbed.ends[step - 1]
        assert part.losses == undisturbed.losses[step:]
        assert part.rates == undisturbed.rates[step:]
        assert part.passes == undisturbed.passes[done:]
        assert part.draws == undisturbed.draws[done:]
        assert part.reads == undisturbed.reads[sum(len(rows) for rows in undisturbed.passes[:done]) :]
        assert largest_difference(part.weights, undisturbed.weights) == 0
        assert part.notices == [f"going on in {case.directory} after update {step}"] * (part is rest[0])
    assert not set(rest[0].draws) & set(rest[1].draws)
    event = resumed(tmp_path / "run")
    assert (event["step"], event["world_size"], event["world_size_before"]) == (step, 2, 2)


@pytest.fixture(scope="module")
def whole(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> list[Part]:
    """The noisy run that nobody disturbed, on two ranks."""
    return ranks.run(2, attempt, Attempt(str(tmp_path_factory.mktemp("whole") / "run"), noisy=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["64", "32"])
@pytest.mark.parametrize(("before", "after"), [(2, (1, 3)), (4, (2,))], ids=["2 to 1 and 3", "4 to 2"])
def test_other_ranks_go_on_in_the_middle_of_an_epoch(
    ranks: RankPool, tmp_path: Path, before: int, after: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    undisturbed = ranks.run(before, attempt, Attempt(str(tmp_path / "whole"), dtype=dtype))
    first = tmp_path / "first"
    step = kill(ranks, before, Attempt(str(first), dtype=dtype, dies_after=undisturbed[1].ends[2] + 1))
    assert step == 3
    saved = read_checkpoint(RunDir(first).checkpoint_of(step))["strategy"]["learners"]["main"]["optimizer"]["state"]
    for world in after:
        directory = tmp_path / f"on-{world}"
        shutil.copytree(first, directory)
        rest = ranks.run(world, attempt, Attempt(str(directory), dtype=dtype))
        for part in rest:
            torch.testing.assert_close(part.loaded, saved, rtol=0, atol=0)
            assert part.rates == undisturbed[0].rates[step:]
            assert part.epochs == undisturbed[0].epochs[step:]
            assert part.samples == undisturbed[0].samples[step:]
            assert largest_difference(part.weights, undisturbed[0].weights) <= tolerance
            torch.testing.assert_close(part.optimizer, undisturbed[0].optimizer, rtol=0, atol=tolerance)
        trained = rows_of(undisturbed, range(step)) + rows_of(rest, range(5 - step))
        assert sorted(trained) == list(range(NUM_ROWS))
        assert rows_of(rest, range(5 - step, 10 - step)) == list(range(NUM_ROWS))
        assert read_json(directory / "plan.json")["global_batch"] == BATCH
        notice, _ = [said for part in rest for said in part.notices]
        assert notice.startswith(
            f"{before} processes have become {world}: global batch, rates and the order of samples"
        )
        event = resumed(directory)
        assert (event["step"], event["world_size"], event["world_size_before"]) == (step, world, before)


def test_each_of_more_ranks_draws_from_a_stream_of_its_own(ranks: RankPool, tmp_path: Path, whole: list[Part]) -> None:
    case = Attempt(str(tmp_path / "run"), noisy=True, dies_after=7)
    step = kill(ranks, 2, case)
    rest = ranks.run(3, attempt, Attempt(case.directory, noisy=True))
    draws = [draw for part in rest for draw in part.draws]
    assert len(set(draws)) == len(draws) >= 3 * (STEPS - step)
    said = [[text for text in part.notices if "each process draws" in text] for part in rest]
    assert [len(texts) for texts in said] == [1, 0, 0]


def test_a_sharded_run_goes_on_too(ranks: RankPool, tmp_path: Path) -> None:
    undisturbed = ranks.run(2, attempt, Attempt(str(tmp_path / "whole"), kind="fsdp"))
    directory = str(tmp_path / "run")
    step = kill(ranks, 2, Attempt(directory, kind="fsdp", dies_after=undisturbed[1].ends[2] + 1))
    copy = str(tmp_path / "copy")
    shutil.copytree(directory, copy)
    for part in ranks.run(2, attempt, Attempt(directory, kind="fsdp")):
        assert part.losses == undisturbed[0].losses[step:]
    first, *_ = ranks.run(3, attempt, Attempt(copy, kind="fsdp"))
    assert largest_difference(first.weights, undisturbed[0].weights) <= 1e-12
    torch.testing.assert_close(first.losses, undisturbed[0].losses[step:], rtol=0, atol=1e-12)


def refused(directory: str, settings: dict[str, Any]) -> None:
    config = config_of(Case(directory, {**CONFIG, **settings}))
    with Trainer(make_model(), config, MaskedRows(NUM_ROWS), loss=MaskedRegression([])) as trainer:
        trainer.fit()


def test_a_refusal_is_one_of_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    case = Attempt(str(tmp_path / "run"), dies_after=5)
    kill(ranks, 2, case)
    with pytest.raises(RankError, match=r"seed: 0 in .*run, now 5") as caught:
        ranks.run(2, refused, case.directory, {"seed": 5})
    assert {error.type_name for error in caught.value.errors.values()} == {"ConfigError"}
    assert sorted(caught.value.errors) == [0, 1]


def per_gpu(directory: str, after: int | None) -> list[int]:
    """A batch of two samples a rank and pass, twice; returns the samples of each update."""
    stated = {"global_batch": None, "micro_batch": "auto", "batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    config = config_of(Case(directory, {**CONFIG, "train": {**CONFIG["train"], **stated}}))
    task, found = Task(after, noisy=False), list[int]()
    with Trainer(make_model(), config, MaskedRows(NUM_ROWS), loss=task) as trainer:
        for info in trainer.steps():
            found.append(info.samples)
    return found


def test_a_batch_stated_for_each_gpu_stays_the_global_batch_that_it_was(ranks: RankPool, tmp_path: Path) -> None:
    directory = str(tmp_path / "run")
    with pytest.raises(RankError, match="Killed"):
        ranks.run(2, per_gpu, directory, 5)
    for found in ranks.run(3, per_gpu, directory, None):
        assert found == [8, 8, 5, 8, 8, 8, 8, 5, 8, 8]
