"""One rank runs out of memory: all make the update again with smaller micro-batches, and end where they would have."""

from __future__ import annotations

import ctypes
import gc
import os
import time
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from drumline import Trainer
from drumline.engine.records import StepInfo
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.faults import Fault, Seen, Where, train_with
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, largest_difference

STEPS = 7
BROKEN = "Connection closed by peer [127.0.0.1]:1234"
TRAIN: dict[str, Any] = {
    "global_batch": 12,
    "max_steps": STEPS,
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "lr": 0.01,
    "max_norm": 1.0,
}


def case_of(tmp_path: Path, kind: str = "ddp", **train: Any) -> Case:
    parallel = (
        {"kind": kind, "timeout_s": 20}
        | ({"replicas": 2} if kind == "data_parallel" else {})
        | ({"bucket_mb": 1e-4} if kind == "ddp" else {})
    )
    return Case(fresh(tmp_path), {"train": {**TRAIN, **train}, "parallel": parallel})


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)


def train_reducing_late(*args: Any) -> Seen:
    """As `compile: whole` does, without compiling: hooks would cut the graph."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        return train_with(*args)
    finally:
        del os.environ["TORCHDYNAMO_DISABLE"]


def check(disturbed: list[Seen], undisturbed: Seen, tolerance: float = 1e-12) -> None:
    """All ranks come to one end, which is the undisturbed run's."""
    for seen in disturbed:
        assert largest_difference(seen.weights, disturbed[0].weights) == 0
        assert largest_difference(seen.weights, undisturbed.weights) <= tolerance
        assert seen.steps == undisturbed.steps == STEPS
        assert seen.rates == undisturbed.rates
        assert seen.samples == undisturbed.samples
        torch.testing.assert_close(seen.losses, undisturbed.losses, rtol=0, atol=tolerance)
        assert seen.generation == 1


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("where", ["forward", "backward", "synchronising", "step", "after the step"])
def test_all_ranks_go_on_with_half(ranks: RankPool, tmp_path: Path, where: Where, accumulation: int) -> None:
    micro = 6 // accumulation
    case = case_of(tmp_path, micro_batch=micro)
    undisturbed, _ = ranks.run(2, train_with, case, [], _model, adamw)
    began = time.monotonic()
    case = case_of(tmp_path, micro_batch=micro)
    disturbed = ranks.run(2, train_with, case, [Fault(where)], _model, adamw)
    assert time.monotonic() - began < 10
    check(disturbed, undisturbed)
    assert [seen.micro_batch for seen in disturbed] == [micro // 2] * 2
    (event,) = [event for event in disturbed[0].events if event["event"] == "out_of_memory"]
    assert (event["rank"], event["step"], event["from"], event["to"]) == (1, event["step"], micro, micro // 2)
    assert event["phase"] == ("the optimizer step" if "step" in where else "forward or backward")


def save(trainer: Trainer, seen: Seen) -> None:
    """Keep the average and the moments."""
    state = trainer._run.strategy.state()
    seen.state = {f"average.{name}": value.clone() for name, value in state["average"]["averages"].items()}
    for number, kept in state["learners"]["main"]["optimizer"]["state"].items():
        seen.state |= {f"{number}.{name}": value.clone() for name, value in kept.items()}


def watch_freed(case: Case) -> bool:
    """Whether what the failed pass had computed is gone when the window begins again."""
    model = _model()
    held: list[weakref.ref[torch.Tensor]] = []
    freed: list[bool] = []

    def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
        if len(held) == 4:
            freed.append(all(each() is None for each in held[:4]))
        held.append(weakref.ref(output))
        if len(held) == 4 and int(os.environ["RANK"]) == 1:
            activation = output * 2  # a local of a frame of the user's
            raise torch.OutOfMemoryError(f"CUDA out of memory. Planted, {activation.shape}")

    model[1].register_forward_hook(keep)
    with Trainer(model, config_of(case), MaskedRows(37), loss=MaskedRegression([])) as trainer:
        trainer.fit()
        assert trainer._run.groups.side.generation == 1
    return freed == [True]


M_MMAP_THRESHOLD = -3  # of <malloc.h>
HELD_BYTES = 6 * 2**20  # the gradients of one update below: the least that a dead update which is held would hold


def many_recoveries(directory: str) -> tuple[list[int], list[int]]:
    """After each recovery, on this rank: bytes of all tensors that Python can reach, and those of the whole process."""
    # Blocks of 64 KiB and more go back to the system when they are freed, so that what stays is what is held.
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    tensors: list[int] = []
    resident: list[int] = []
    width = HELD_BYTES // 8 // 6
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).double()

    def fail(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if len(args[0]) == 6 and os.environ["RANK"] == "1":
            raise torch.OutOfMemoryError("CUDA out of memory. Planted")

    def note(trainer: Trainer, info: StepInfo) -> None:
        if trainer._run.groups.side.generation >= len(tensors):
            reached = (thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor))
            tensors.append(sum({each.data_ptr(): each.nbytes for each in reached}.values()))
            resident.append(psutil.Process().memory_info().rss)

    model.register_forward_pre_hook(fail)
    train = {**TRAIN, "max_steps": 32, "micro_batch": 6, "out_of_memory": {"grow_after": 1}}
    case = Case(directory, {"train": train, "parallel": {"kind": "ddp", "timeout_s": 20}})
    task = MaskedRegression([])
    with Trainer(model, config_of(case), MaskedRows(37), loss=task, callbacks=[note]) as trainer:
        trainer.fit()
        assert trainer._run.groups.side.generation >= 20
    return tensors[4:], resident[4:]


def _model() -> nn.Sequential:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model.double()
    return model


def norm_and_dropout() -> nn.Module:
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(8, 1)).double()


@pytest.mark.parametrize("where", ["forward", "synchronising"])
def test_streams_and_buffers_are_those_of_a_run_that_had_this_size_from_the_start(
    ranks: RankPool, tmp_path: Path, where: Where
) -> None:
    """Memory runs out in the first update, so that all of the run is made with half."""
    undisturbed, _ = ranks.run(2, train_with, case_of(tmp_path, micro_batch=3), [], norm_and_dropout, adamw)
    fault = Fault(where, update=0)
    disturbed = ranks.run(2, train_with, case_of(tmp_path, micro_batch=6), [fault], norm_and_dropout, adamw)
    check(disturbed, undisturbed, tolerance=0)


def test_three_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """Those that wait for one another in a ring are all freed."""
    case = case_of(tmp_path, micro_batch=2)
    undisturbed, *_ = ranks.run(3, train_with, case, [], _model, adamw, timeout=60.0)
    case = case_of(tmp_path, micro_batch=2)
    disturbed = ranks.run(3, train_with, case, [Fault("synchronising", rank=2)], _model, adamw)
    check(disturbed, undisturbed)


def test_all_ranks_at_once_and_again(ranks: RankPool, tmp_path: Path) -> None:
    """Micro-batches of more than two rows fit nowhere: six, three, one, in one update."""
    undisturbed, _ = ranks.run(2, train_with, case_of(tmp_path, micro_batch=6), [], _model, adamw)
    faults = [Fault("backward", rank, above=2) for rank in (0, 1)]
    disturbed = ranks.run(2, train_with, case_of(tmp_path, micro_batch=6), faults, _model, adamw)
    for seen in disturbed:
        assert largest_difference(seen.weights, undisturbed.weights) <= 1e-12
        assert (seen.micro_batch, seen.generation, seen.steps) == (1, 2, STEPS)
        assert set(seen.sizes) == {6, 3, 1}
    found = [(e["from"], e["to"]) for e in disturbed[0].events if e["event"] == "out_of_memory"]
    assert sorted(found) == [(3, 1)] * 2 + [(6, 3)] * 2


def test_one_row_that_does_not_fit_ends_the_run_and_says_so(ranks: RankPool, tmp_path: Path) -> None:
    faults = [Fault("forward", rank, above=0, update=update) for rank in (1,) for update in (2,)]
    endings = failures_of(ranks, 2, train_with, case_of(tmp_path, micro_batch=1), faults, _model, adamw)
    for name, message in endings:
        assert name == "OutOfMemory"
        assert "rank 1 has no memory for a micro-batch of one sample, in forward or backward of update 2" in message
        assert "Planted" in message and "fix: " in message


def test_the_run_ends_where_the_settings_say_so(ranks: RankPool, tmp_path: Path) -> None:
    case = case_of(tmp_path, micro_batch=6, out_of_memory={"recover": False})
    endings = failures_of(ranks, 2, train_with, case, [Fault("forward")], _model, adamw)
    assert endings[1] == ("OutOfMemoryError", "CUDA out of memory. Planted")
    assert endings[0].name == "PeerFailed"


def test_averaged_weights_and_schedules_of_torch_are_taken_over(ranks: RankPool, tmp_path: Path) -> None:
    """After a step that only one rank has made, the other has all of it: average, schedule, moments."""
    train: dict[str, Any] = {
        "micro_batch": 6,
        "averaging": {"kind": "ema", "decay": 0.9},
        "schedule": {"name": "torch", "scheduler": "ExponentialLR", "options": {"gamma": 0.9}},
    }
    undisturbed, _ = ranks.run(2, train_with, case_of(tmp_path, **train), [], _model, adamw, save)
    for rank in (0, 1):
        disturbed = ranks.run(
            2, train_with, case_of(tmp_path, **train), [Fault("after the step", rank)], _model, adamw, save
        )
        check(disturbed, undisturbed)
        assert disturbed[0].state is not None and undisturbed.state is not None
        assert largest_difference(disturbed[0].state, undisturbed.state) <= 1e-12


def test_the_size_grows_back_when_asked(ranks: RankPool, tmp_path: Path) -> None:
    case = case_of(tmp_path, micro_batch=6, out_of_memory={"grow_after": 2})
    undisturbed, _ = ranks.run(2, train_with, case, [], _model, adamw)
    case = case_of(tmp_path, micro_batch=6, out_of_memory={"grow_after": 2})
    disturbed = ranks.run(2, train_with, case, [Fault("forward", update=1)], _model, adamw)
    check(disturbed, undisturbed)
    sizes = disturbed[0].sizes
    assert sizes[:3] == [6, 6, 6] and sizes[-3:] == [6, 6, 6]  # the first is the layout of the buckets
    assert [e["to"] for e in disturbed[0].events if e["event"] == "micro_batch_grown"] == [6]


@pytest.mark.parametrize("where", ["forward", "synchronising", "after the step"])
def test_all_ranks_go_on_where_all_is_reduced_after_the_backward_pass(
    ranks: RankPool, tmp_path: Path, where: Where
) -> None:
    case = case_of(tmp_path, micro_batch=3, compile="whole")
    undisturbed, _ = ranks.run(2, train_reducing_late, case, [], _model, adamw)
    case = case_of(tmp_path, micro_batch=3, compile="whole")
    disturbed = ranks.run(2, train_reducing_late, case, [Fault(where)], _model, adamw)
    check(disturbed, undisturbed)
    assert [seen.micro_batch for seen in disturbed] == [1] * 2


@pytest.mark.parametrize("kind", ["single", "data_parallel"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_one_process(ranks: RankPool, tmp_path: Path, kind: str, where: Where) -> None:
    undisturbed, *_ = ranks.run(1, train_with, case_of(tmp_path, kind, micro_batch=6), [], _model, adamw)
    fault = Fault(where, rank=0)
    (seen,) = ranks.run(1, train_with, case_of(tmp_path, kind, micro_batch=6), [fault], _model, adamw)
    check([seen], undisturbed)
    assert seen.micro_batch == 3


def test_a_step_that_is_half_made_everywhere_needs_new_processes(ranks: RankPool, tmp_path: Path) -> None:
    faults = [Fault("after the step", rank) for rank in (0, 1)]
    endings = failures_of(ranks, 2, train_with, case_of(tmp_path, micro_batch=6), faults, _model, adamw)
    assert [ending.name for ending in endings] == ["RestartNeeded"] * 2


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_sharded_runs_save_what_they_have_and_go_on_in_new_processes(
    ranks: RankPool, tmp_path: Path, where: Where
) -> None:
    undisturbed, _ = ranks.run(2, train_with, case_of(tmp_path, "fsdp", micro_batch=6), [], _model, adamw)
    case = case_of(tmp_path, "fsdp", micro_batch=6)
    endings = failures_of(ranks, 2, train_with, case, [Fault(where)], _model, adamw)
    assert [ending.name for ending in endings] == ["RestartNeeded"] * 2
    assert "micro-batches of 3" in endings[0].message
    again = ranks.run(2, train_with, case, [], _model, adamw)
    assert largest_difference(again[0].weights, undisturbed.weights) <= 1e-12
    for seen in again:
        assert (seen.steps, seen.micro_batch) == (STEPS, 3)
        assert max(seen.sizes) == 3


def test_a_collective_that_breaks_while_all_live_is_made_again(ranks: RankPool, tmp_path: Path) -> None:
    undisturbed, _ = ranks.run(2, train_with, case_of(tmp_path, micro_batch=6), [], _model, adamw)
    broken = [Fault("backward", rank, error=RuntimeError, text=BROKEN) for rank in (0, 1)]
    disturbed = ranks.run(2, train_with, case_of(tmp_path, micro_batch=6), broken, _model, adamw)
    check(disturbed, undisturbed)
    assert [seen.micro_batch for seen in disturbed] == [None, None]


def test_the_same_error_three_times_in_one_update_ends_the_run(ranks: RankPool, tmp_path: Path) -> None:
    broken = [Fault("backward", 1, above=1, error=RuntimeError, text=BROKEN)]
    endings = failures_of(ranks, 2, train_with, case_of(tmp_path, micro_batch=6), broken, _model, adamw)
    assert all("failed 3 times with the same error on rank 1" in ending.message for ending in endings)


def test_nothing_of_the_dead_update_is_held_when_the_next_try_begins(ranks: RankPool, tmp_path: Path) -> None:
    found = ranks.run(2, watch_freed, case_of(tmp_path, micro_batch=6))
    assert found == [True, True]


def test_many_recoveries_leave_memory_flat(ranks: RankPool, tmp_path: Path) -> None:
    """Of tensors only the last window's are smaller; the process may grow by far less than one dead update holds."""
    for tensors, resident in ranks.run(2, many_recoveries, fresh(tmp_path)):
        assert max(tensors) - min(tensors) < 2**14
        assert max(resident) - resident[0] < HELD_BYTES / 2
