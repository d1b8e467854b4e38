"""The preflight over ranks, each with a simulated memory of its own: one size for all, kept from then on."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from drumline import Trainer
from tests.rank_pool import RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, largest_difference, make_model
from tests.unit.engine.simulated_memory import SimulatedMemory, measured_by


@dataclass
class Seen:
    """What one rank did."""

    micro_batch: int | None = None
    evaluation_batch: int | None = None
    tried: list[tuple[int, bool]] = field(default_factory=list)
    """Rows of each pass of the preflight, and whether it was of training."""
    sizes: list[int] = field(default_factory=list)
    """Rows of each training pass of the run."""
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0


def case_of(directory: str, kind: str = "ddp", **train: Any) -> Case:
    train = {"global_batch": 32, "epochs": 2, "schedule": {"name": "cosine"}, **train}
    parallel = {"kind": kind, "timeout_s": 20}
    config = {"train": train, "parallel": parallel, "checkpoint": {"at_end": True}}
    return Case(directory, config, num_rows=80, num_eval_rows=40)


def run(case: Case, rooms: Sequence[float], most: int | None = None) -> Seen:
    """Train on this rank, whose memory has that much room for rows of 3 bytes beside 10; at most so many updates."""
    seen, model, rank = Seen(), make_model(), int(os.environ["RANK"])
    memory = SimulatedMemory(model, (10 + rooms[rank]) / 0.9)
    assert case.num_eval_rows is not None
    data, held_out = MaskedRows(case.num_rows), MaskedRows(case.num_eval_rows)
    with (
        measured_by(memory),
        Trainer(model, config_of(case), data, loss=MaskedRegression([]), eval_data=held_out) as trainer,
    ):
        assert trainer.run_dir.exists()  # the run has started
        seen.tried, memory.passes = memory.passes, []
        for info in trainer.steps():
            assert info.logged is not None
            seen.losses.append(info.logged["loss"])
            seen.rates.append(info.logged["lr"])
            if info.step == most:
                trainer.save()
                break
        progress = trainer._run.progress
        seen.steps, seen.micro_batch, seen.evaluation_batch = (
            progress.step,
            progress.micro_batch,
            progress.evaluation_batch,
        )
        seen.sizes = [rows for rows, training in memory.passes if training]
        seen.weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    seen.events = [json.loads(line) for line in (Path(case.directory) / "events.jsonl").read_text().splitlines()]
    return seen


@pytest.mark.parametrize(("kind", "world"), [("ddp", 2), ("ddp", 3), ("fsdp", 2)])
def test_the_least_size_of_all_ranks_is_everybodys(ranks: RankPool, tmp_path: Path, kind: str, world: int) -> None:
    """Case 13 (e): the last rank has room for six rows of training, the others for twelve."""
    rooms = [36.0] * (world - 1) + [18.0]
    given = ranks.run(world, run, case_of(fresh(tmp_path), kind, micro_batch=6), [1e9] * world)
    found = ranks.run(world, run, case_of(fresh(tmp_path), kind), rooms)
    for seen, expected in zip(found, given, strict=True):
        assert (seen.micro_batch, seen.evaluation_batch) == (6, min(18, -(-32 // world), -(-40 // world)))
        assert seen.tried == found[0].tried, "all ranks make the same trials"
        assert seen.sizes == expected.sizes and max(seen.sizes) <= 6
        assert seen.losses == expected.losses and seen.rates == expected.rates and seen.steps == expected.steps
        assert kind == "fsdp" or largest_difference(seen.weights, expected.weights) == 0
        (event,) = [each for each in seen.events if each["event"] == "preflight"]
        assert event["training"]["rows"] == 6 and f"6 of {-(-32 // world)} samples" in event["message"]


def test_memory_that_runs_out_in_a_trial_on_one_rank_is_everybodys_too(ranks: RankPool, tmp_path: Path) -> None:
    """The simulated device has room for one row, and none for the second that is tried next."""
    found = ranks.run(2, run, case_of(fresh(tmp_path)), [1e9, 3.0])
    assert [seen.micro_batch for seen in found] == [1, 1]
    trials = found[0].events[[each["event"] for each in found[0].events].index("preflight")]["training"]["trials"]
    assert [2, None] in trials


def test_a_resume_keeps_the_size_on_as_many_ranks_and_takes_the_smaller_on_fewer(
    ranks: RankPool, tmp_path: Path
) -> None:
    """Case 13 (c), and the run's length, which transformers #25956 made smaller than what was done already."""
    expected = ranks.run(2, run, case_of(fresh(tmp_path)), [18.0, 18.0])
    directory = fresh(tmp_path)
    first = ranks.run(2, run, case_of(directory), [18.0, 18.0], 2)
    second = ranks.run(2, run, case_of(directory), [1e9, 1e9])
    for before, after, whole in zip(first, second, expected, strict=True):
        assert (before.micro_batch, after.micro_batch, after.steps) == (6, 6, whole.steps)
        assert before.losses + after.losses == whole.losses
        assert largest_difference(after.weights, whole.weights) == 0
    for room, size in ((9.0, 3), (1e9, 6)):
        directory = fresh(tmp_path)
        ranks.run(2, run, case_of(directory), [18.0, 18.0], 2)
        (alone,) = ranks.run(1, run, case_of(directory, "single"), [room])
        assert alone.micro_batch == size and max(alone.sizes) <= size and alone.steps == expected[0].steps
