"""The preflight on a simulated memory, as the CPU has none to measure: what it finds, and that it leaves no trace."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from drumline import Trainer
from drumline.engine.preflight import Sizes, settled
from drumline.rundir import read_lines
from tests.unit.engine.simulated_memory import SimulatedMemory, measured_by
from tests.unit.engine.training import (
    assert_same,
    config_of,
    losses,
    make_model,
    rows,
    squared_error,
    state_of,
    trainer_of,
)

ROOM = 50.0
"""Of it 45 may be filled: 10 bytes of state and 3 a row leave room for 11 rows of training, 35 of evaluation."""


def event_of(directory: Path) -> dict[str, Any]:
    (event,) = (each for each in read_lines(directory / "events.jsonl") if each["event"] == "preflight")
    return event


def started(directory: Path, share: int = 32, num_rows: int = 64, capacity: float = ROOM, **given: Any) -> Any:
    """A trainer whose run has started, with its simulated memory."""
    model = make_model()
    memory = SimulatedMemory(model, capacity)
    train = {"global_batch": share, **given.pop("train", {})}
    trainer = trainer_of(directory, rows(num_rows), model, train=train, **given)
    with measured_by(memory):
        trainer.run_dir  # noqa: B018  starts the run
    return trainer, memory


def test_the_size_with_the_fewest_passes_is_found_and_used(tmp_path: Path) -> None:
    trainer, memory = started(tmp_path / "run")
    run = trainer._run
    assert (run.plan.micro_batch, run.plan.accumulation, run.progress.micro_batch) == (11, 3, 11)
    assert "11 of a shard's share of 32" in run.plan.reasons["micro_batch"]
    memory.passes.clear()
    list(trainer.steps())
    assert {size for size, training in memory.passes if training} == {11, 10}  # 32 rows in three passes
    trainer.close()


def test_steps_global_batch_and_rates_stay(tmp_path: Path) -> None:
    """Case 13 (b): nothing but the passes follows from the size that was found."""
    train = {"global_batch": 32, "epochs": 3, "schedule": {"name": "cosine", "warmup_steps": 1}}
    seen = []
    for name, capacity in (("all", 1e9), ("some", ROOM)):
        trainer, _ = started(tmp_path / name, num_rows=70, capacity=capacity, train=train)
        infos = list(trainer.steps())
        plan = json.loads((tmp_path / name / "plan.json").read_text())
        rates = [info.logged["lr"] for info in infos if info.logged is not None]
        seen.append((plan["steps"], plan["global_batch"], [info.samples for info in infos], rates))
        trainer.close()
    assert seen[0] == seen[1] and seen[0][0] == 9


def test_training_and_evaluation_have_sizes_of_their_own(tmp_path: Path) -> None:
    trainer, _ = started(tmp_path / "run", eval_data=rows(64))
    progress = trainer._run.progress
    assert (progress.micro_batch, progress.evaluation_batch) == (11, 32)  # no more than an update's share
    event = event_of(tmp_path / "run")
    assert (event["training"]["rows"], event["training"]["share"], event["evaluation"]["rows"]) == (11, 32, 32)
    assert event["target"] == 0.9 and event["seconds"] < 5
    trainer.close()
    trainer, _ = started(tmp_path / "other", share=128, num_rows=128, eval_data=rows(128))
    assert trainer._run.progress.evaluation_batch == 32  # of 128: four passes; 35 would fit
    trainer.close()


@pytest.mark.parametrize("kind", ["single", "data_parallel"])
def test_it_leaves_no_trace(tmp_path: Path, kind: str) -> None:
    """With BatchNorm, dropout and momentum, a run is bit-equal to one that was given the size."""
    parallel = {"kind": kind, **({"replicas": 2} if kind == "data_parallel" else {})}
    ends = []
    for given in ("auto", 3):
        model = make_model(dropout=0.5, norm=True)
        memory = SimulatedMemory(model, 20.0 / 0.9)  # 10 and 3 a row: three rows
        train = {"global_batch": 12, "micro_batch": given, "epochs": 2}
        trainer = trainer_of(tmp_path / str(given), rows(24), model, train=train, parallel=parallel, eval_data=rows(6))
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        modes = [module.training for module in model.modules()]
        with measured_by(memory):
            trainer.run_dir  # noqa: B018  starts the run
        draws = random.random(), float(np.random.rand()), float(torch.rand(()))
        assert modes == [module.training for module in model.modules()]
        assert all(p.grad is None for p in model.parameters())
        assert trainer._run.plan.micro_batch == 3
        infos = list(trainer.steps())
        ends.append((draws, losses(infos), state_of(model)))
        trainer.close()
    assert ends[0][:2] == ends[1][:2]
    assert_same(ends[0][2], ends[1][2])


def test_a_single_row_that_fills_memory_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = started(tmp_path / "run", capacity=14.0)  # one row takes 13 of 14, of which 12.6 may be filled
    assert trainer._run.plan.micro_batch == 1
    assert "a single sample of the training data fills memory" in caplog.text
    list(trainer.steps())
    trainer.close()


def test_sizes_that_are_given_are_kept(tmp_path: Path) -> None:
    for number, train in enumerate(({"micro_batch": 16}, {"global_batch": "unset", "batch_size_per_gpu": 16})):
        trainer, memory = started(tmp_path / str(number), capacity=1e9, train=train, eval_data=rows(8))
        assert trainer._run.plan.micro_batch == 16 and trainer._run.progress.micro_batch is None
        assert memory.passes == []
        trainer.close()
    trainer, _ = started(tmp_path / "evaluate", eval_data=rows(8), evaluate={"batch": 5})
    assert trainer._run.progress.evaluation_batch is None and event_of(tmp_path / "evaluate")["evaluation"] is None
    trainer.close()


def test_on_the_cpu_there_is_none(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer:
        assert trainer._run.plan.micro_batch == 4 and trainer._run.progress.micro_batch is None
    assert "preflight" not in (tmp_path / "run" / "events.jsonl").read_text()


class Texts(Dataset[Tensor]):
    """Rows of different lengths; `taken` are those that were read."""

    def __init__(self, lengths: list[int]) -> None:
        self.sizes = lengths
        self.taken: list[int] = []

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, row: int) -> Tensor:
        self.taken.append(row)
        return torch.ones(self.sizes[row], 3, dtype=torch.float64)


def padded(batch: list[Tensor]) -> Tensor:
    """[rows, length, 3]; it takes the rows apart, as some collate functions do."""
    made = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    batch.clear()
    return made


def test_trials_are_made_with_the_longest_row(tmp_path: Path) -> None:
    model, lengths = make_model(), [2, 3, 9, 4] * 4
    memory = SimulatedMemory(model, 1e9)
    seen: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(tuple(inputs[0].shape)))
    config = config_of(tmp_path / "run", train={"global_batch": 8})

    def loss(model: torch.nn.Module, batch: Tensor) -> Tensor:
        return squared_error(model, (batch, batch.sum(-1, keepdim=True)))

    with measured_by(memory), Trainer(model, config, Texts(lengths), loss=loss, collate=padded) as trainer:
        assert trainer.run_dir.exists()
        assert {shape[1] for shape in seen} == {9} and max(shape[0] for shape in seen) == 8


def test_rows_that_cannot_be_tried_leave_the_share(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Empty(Dataset[Tensor]):
        def __len__(self) -> int:
            return 0

        def __getitem__(self, row: int) -> Tensor:
            raise IndexError(row)

    model = make_model()
    config = config_of(tmp_path / "run", train={"global_batch": 8})
    with (
        measured_by(SimulatedMemory(model, 40.0)),
        Trainer(model, config, rows(16), loss=squared_error, collate=default_collate, eval_data=Empty()) as trainer,
    ):
        assert trainer._run.progress.evaluation_batch is None
    assert "no row of the evaluation data" in caplog.text


@pytest.mark.parametrize(
    ("kept", "found", "asked", "same", "expected"),
    [
        (None, 8, None, False, 8),  # a new run
        (None, None, None, True, None),
        (6, 8, None, True, 6),  # resumed: bit by bit as it would have gone on
        (16, 8, None, True, 16),
        (16, 8, None, False, 8),  # resumed on fewer devices
        (6, 8, None, False, 6),
        (6, None, None, False, 6),  # on the CPU
        (6, None, 4, True, None),  # the config asks for less by now
        (6, None, 12, True, 6),  # it had to shrink
    ],
)
def test_which_size_a_run_goes_on_with(
    kept: int | None, found: int | None, asked: int | None, same: bool, expected: int | None
) -> None:
    assert settled(kept, found, asked, same=same) == expected


def test_nothing_found_changes_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    assert Sizes().stated(config) is config
