"""What ranks conclude when they meet after a failure, and where a run stands then: pure parts of engine/recover.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drumline.engine.marks import KEPT, Marks
from drumline.engine.meeting import Report, Verdict, judge, numbers, outcome_of
from drumline.engine.pending import Pending
from drumline.engine.recover import finds_no_memory, halved
from drumline.parallel.strategy import Outcome


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        # All failed in their passes: nobody has anything to give.
        ([Report(4, False), Report(4, False)], Verdict(4, 0, [])),
        # One failed in its step before anything was written, the other has made it.
        ([Report(5, False), Report(4, False)], Verdict(5, 0, [1])),
        # One failed in the middle of its step, the others have made it.
        ([Report(4, True), Report(5, False), Report(5, False)], Verdict(5, 1, [0])),
        # One failed in the middle of its step, the other before its own: back to before it.
        ([Report(4, True), Report(4, False)], Verdict(4, 1, [0])),
        # A torn one never gives, however far it is.
        ([Report(5, True), Report(4, False)], Verdict(4, 1, [0])),
        ([Report(4, True), Report(4, True)], None),
    ],
)
def test_the_first_whole_rank_that_is_ahead_gives(reports: list[Report], verdict: Verdict | None) -> None:
    assert judge(reports) == verdict


def test_the_new_size_is_half_of_what_was_too_large_anywhere() -> None:
    assert halved([8]) == 4
    assert halved([8, 6]) == 3
    assert halved([5]) == 2
    assert halved([3, 1]) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: 12 bytes"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_errors_that_mean_no_memory(error: Exception, expected: bool) -> None:
    assert finds_no_memory(error) is expected


def test_no_memory_behind_another_error() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as cause:
            raise RuntimeError("replica 1 on cuda:1: it failed") from cause
    except RuntimeError as error:
        assert finds_no_memory(error)


class Interval:
    samples, units = 3, 30


class Stub:
    """What a mark is taken of."""

    def __init__(self) -> None:
        from drumline.engine.run import Progress

        self.progress = Progress(step=10, skipped=2, epoch=1, window=4)
        self.interval = Interval()


def mark_windows(marks: Marks, num: int, learners: int = 1) -> None:
    run: Any = Stub()
    for _ in range(num):
        marks.begin(run)
        run.progress.step += 1
        run.progress.window += 1
        for _ in range(learners):
            marks.stepped(outcome(1.0))


def outcome(norm: float, applied: float = 1.0, lr: float = 0.5) -> Outcome:
    return Outcome(torch.tensor(norm, dtype=torch.float64), torch.tensor(applied), lr)


def test_marks_of_the_newest_windows_are_found_by_steps() -> None:
    marks = Marks()
    assert marks.at(0) is None
    mark_windows(marks, 5, learners=2)
    assert len(marks.newest) == KEPT
    last = marks.at(10)
    assert last is not None and (last.steps, last.begun, last.window) == (8, 16, 8)
    middle = marks.at(9)  # the second learner has not made its step: the same window
    assert middle == last
    before = marks.at(7)
    assert before is not None and before.steps == 6
    assert marks.at(5) is None  # left behind for good


def test_a_window_that_is_begun_again_has_one_mark() -> None:
    marks = Marks()
    run: Any = Stub()
    marks.begin(run)
    marks.begin(run)
    assert len(marks.newest) == 1


def test_only_the_newest_outcomes_are_kept_and_travel_as_numbers() -> None:
    marks = Marks()
    mark_windows(marks, 50)
    assert max(marks.outcomes) == 49 and len(marks.outcomes) <= 4 * KEPT
    found = numbers({3: outcome(2.5, 0.0, 0.25), 4: outcome(float("inf"))})
    assert found == {"3": [2.5, 0.0, 0.25], "4": [float("inf"), 1.0, 0.5]}
    back = outcome_of(found["3"])
    assert (float(back.norm), float(back.applied), back.lr) == (2.5, 0.0, 0.25)


def test_an_outcome_that_is_void_has_a_negative_norm() -> None:
    pending = Pending(torch.device("cpu"))
    pending.push(1, [outcome(-1.0, 0.0)])
    (known,) = pending.take(0)
    assert known.learners[0].norm < 0 and not known.learners[0].applied
