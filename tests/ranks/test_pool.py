"""The pool of ranks itself: what tests may rely on."""

from __future__ import annotations

import os
import signal
import time
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.rank_pool import RankError, RankLeak, RankPool, RanksSilent


@dataclass(frozen=True)
class Point:
    """A type of this module, to be passed to a rank and back."""

    x: int
    y: torch.Tensor


def environment() -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS")
    return {name: os.environ[name] for name in names}


def run_id() -> str:
    return os.environ["TORCHELASTIC_RUN_ID"]


def process_id() -> int:
    return os.getpid()


def moved(point: Point, by: int) -> Point:
    return Point(point.x + by, point.y * int(os.environ["RANK"]))


def summed(values: list[float]) -> torch.Tensor:
    tensor = torch.tensor(values, dtype=torch.float64) * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    return tensor


def summed_in_own_group() -> float:
    dist.init_process_group("gloo")
    try:
        return float(summed([1.0])[0])
    finally:
        dist.destroy_process_group()


def fail_in_order() -> None:
    rank = int(os.environ["RANK"])
    time.sleep(0.0 if rank == 1 else 0.1)
    raise KeyError(f"from rank {rank}")


def fail_before_collective() -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 only")
    dist.all_reduce(torch.ones(1))


def hang_on(rank: int) -> str:
    print("about to start")
    if int(os.environ["RANK"]) == rank:
        while True:
            time.sleep(0.05)
    return "answered"


def die_on(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        os.kill(os.getpid(), signal.SIGKILL)


def leave_group() -> None:
    dist.init_process_group("gloo")


def leave_group_and_fail() -> None:
    leave_group()
    raise ValueError("after the group was made")


def leave_variable() -> None:
    os.environ["DRUMLINE_LEFT_BEHIND"] = "1"


def sees_variable() -> bool:
    return "DRUMLINE_LEFT_BEHIND" in os.environ or dist.is_initialized()


def exit_quietly() -> None:
    raise SystemExit(0)


def warn() -> None:
    warnings.warn("this is not silent", stacklevel=1)


def random_number() -> float:
    return float(torch.rand(1))


def unpicklable() -> Any:
    return lambda: None


def test_each_rank_sees_its_own_place(ranks: RankPool) -> None:
    for size in (1, 2, 3):
        assert ranks.run(size, environment) == [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "OMP_NUM_THREADS": "1",
            }
            for rank in range(size)
        ]
    assert "RANK" not in os.environ


def test_processes_are_shared_and_run_ids_are_not(ranks: RankPool) -> None:
    first, second = ranks.run(2, process_id), ranks.run(2, process_id)
    assert first == second
    assert len({os.getpid(), *first}) == 3
    ids = {*ranks.run(2, run_id), *ranks.run(2, run_id)}
    assert len(ids) == 2


def test_types_of_the_test_module_pass_both_ways(ranks: RankPool) -> None:
    result = ranks.run(2, moved, Point(1, torch.ones(3)), 4)
    assert [point.x for point in result] == [5, 5]
    assert torch.equal(result[1].y, torch.ones(3)) and torch.equal(result[0].y, torch.zeros(3))


def test_a_group_a_call(ranks: RankPool) -> None:
    for size, factor in ((1, 1.0), (2, 3.0), (4, 10.0), (3, 6.0)):
        for tensor in ranks.run_grouped(size, summed, [1.0, 2.0]):
            assert torch.equal(tensor, torch.tensor([1.0, 2.0], dtype=torch.float64) * factor)


def test_torchs_own_rendezvous_works_again_and_again(ranks: RankPool) -> None:
    assert ranks.run(2, summed_in_own_group) == [3.0, 3.0]
    assert ranks.run(3, summed_in_own_group) == [6.0, 6.0, 6.0]


def test_the_earliest_failure_is_told_first(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="rank 1: KeyError") as caught:
        ranks.run(3, fail_in_order)
    error = caught.value
    assert (error.rank, error.type_name, error.message) == (1, "KeyError", "'from rank 1'")
    assert "in fail_in_order" in error.traceback
    assert sorted(error.errors) == [0, 1, 2]
    assert ranks.run(3, sees_variable) == [False, False, False]


def test_a_failing_rank_frees_its_peers(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="rank 1: ValueError: rank 1 only") as caught:
        ranks.run_grouped(2, fail_before_collective, timeout=10.0)
    assert sorted(caught.value.errors) == [0, 1]
    first, last = sorted(error.time for error in caught.value.errors.values())
    assert last - first < 5.0


@pytest.mark.parametrize("size", [1, 2])
def test_a_group_left_behind_fails(ranks: RankPool, size: int) -> None:
    with pytest.raises(RankLeak, match="rank 0 left behind: process group"):
        ranks.run(size, leave_group)
    with pytest.raises(RankLeak, match="process group") as caught:
        ranks.run(size, leave_group_and_fail)
    assert isinstance(caught.value.__cause__, RankError)
    with pytest.raises(RankLeak, match="DRUMLINE_LEFT_BEHIND"):
        ranks.run(size, leave_variable)
    assert ranks.run(size, sees_variable) == [False] * size


def test_silent_ranks_are_named_and_replaced(ranks: RankPool) -> None:
    before = ranks.run(2, process_id)
    with pytest.raises(RanksSilent, match=r"within 0.5 s from ranks \[1\]") as caught:
        ranks.run(2, hang_on, 1, timeout=0.5)
    assert caught.value.ranks == [1]
    assert "about to start" in ranks.output[0]
    assert "in hang_on" in ranks.output[1]
    after = ranks.run(2, process_id)
    assert not set(before) & set(after)


def test_a_rank_that_dies_is_an_error(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 1: RankDied: .* exit code -9"):
        ranks.run(2, die_on, 1)
    assert ranks.run(2, sees_variable) == [False, False]


def test_exits_warnings_and_odd_results_are_errors(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="SystemExit"):
        ranks.run(1, exit_quietly)
    with pytest.raises(RankError, match="UserWarning: this is not silent"):
        ranks.run(1, warn)
    with pytest.raises(RankError, match="unpicklable"):
        ranks.run(1, unpicklable)


def test_random_streams_start_anew_and_differ_by_rank(ranks: RankPool) -> None:
    first = ranks.run(2, random_number)
    assert ranks.run(2, random_number) == first
    assert first[0] != first[1]


def test_what_the_pool_cannot_do_is_refused(ranks: RankPool) -> None:
    with pytest.raises(ValueError, match="not 5"):
        ranks.run(5, process_id)
    with pytest.raises(ValueError, match="module-level"):
        ranks.run(1, lambda: None)


def test_ranks_end_with_the_pool() -> None:
    pool = RankPool()
    pids = pool.run(2, process_id)
    pool.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_call_is_cheap(ranks: RankPool) -> None:
    """A fresh torchrun costs seconds; the median of a call with a new group of two is to stay far below."""
    ranks.run_grouped(2, summed, [1.0])
    times = []
    for _ in range(9):
        start = time.perf_counter()
        ranks.run_grouped(2, summed, [1.0])
        times.append(time.perf_counter() - start)
    assert sorted(times)[4] < 0.25
