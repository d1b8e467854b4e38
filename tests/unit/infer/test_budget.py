from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from drumline.config.inference import BatchingConfig
from drumline.infer.budget import (
    FIRST,
    MOST_ATTEMPTS,
    ON_CPU,
    SECOND,
    SHARE,
    WITHOUT_TRIAL,
    by_trial,
    find_budget,
    foretell,
    may_try,
    rounded,
)
from drumline.infer.records import Answer, Prepared
from tests.unit.infer.toy import CPU, Toy

ROWS = [Prepared(number, 50 + number % 51, 100 + number % 51, "") for number in range(1000)]
LARGEST = 150


class SimulatedMemory:
    """A device on which a batch takes a fixed part, and a part a token that may grow faster than the batch."""

    def __init__(self, room: int, fixed: int, a_token: int, power: float = 1.0) -> None:
        self.room, self.fixed, self.a_token, self.power = room, fixed, a_token, power
        self.tokens = 0
        self.tried: list[int] = []

    def free(self) -> list[int]:
        return [self.room, 10 * self.room]

    def peaks_of(self, action: Callable[[], object]) -> list[int] | None:
        action()
        self.tried.append(self.tokens)
        peak = self.needed(self.tokens)
        return [peak, peak] if peak <= self.room else None

    def needed(self, tokens: int) -> int:
        return self.fixed + int(self.a_token * tokens**self.power)

    def toy(self) -> Toy:
        def hook(rows: Sequence[int], num: int, width: int) -> None:
            self.tokens = num * LARGEST

        return Toy(hook=hook)


def test_a_setting_and_the_cpu_need_no_trial() -> None:
    toy = Toy()
    assert find_budget(toy, ROWS, BatchingConfig(tokens=777), torch.device("cuda")) == 777
    assert find_budget(toy, ROWS, BatchingConfig(), CPU) == ON_CPU
    assert find_budget(toy, [], BatchingConfig(), torch.device("cuda")) == WITHOUT_TRIAL
    assert toy.ran == []


def test_the_budget_is_what_the_memory_holds_and_was_tried() -> None:
    memory = SimulatedMemory(room=10_000_000, fixed=1_000_000, a_token=200)
    tokens = by_trial(memory.toy(), ROWS, memory)
    assert 0.7 * 10_000_000 * SHARE < memory.needed(tokens) <= 10_000_000 * SHARE
    assert len(memory.tried) == 4
    assert memory.tried[-1] >= tokens


def test_a_need_that_grows_faster_than_foretold_is_found_by_the_last_trial() -> None:
    memory = SimulatedMemory(room=10_000_000, fixed=0, a_token=1, power=1.6)
    tokens = by_trial(memory.toy(), ROWS, memory)
    assert memory.needed(tokens) <= 10_000_000
    assert tokens >= SECOND * LARGEST / 2


@pytest.mark.parametrize(("room", "rows"), [(299, 1), (300, FIRST)])
def test_little_memory_gives_little_batches(room: int, rows: int) -> None:
    memory = SimulatedMemory(room=room * 1000, fixed=0, a_token=1000)
    assert by_trial(memory.toy(), ROWS, memory) == rows * LARGEST


def test_a_few_rows_are_never_more_than_all_of_them() -> None:
    memory = SimulatedMemory(room=10**15, fixed=0, a_token=1)
    tokens = by_trial(memory.toy(), ROWS[:40], memory)
    assert max(memory.tried) <= 40 * LARGEST
    assert tokens <= max(memory.tried)


def test_no_more_rows_are_tried_than_a_batch_may_have() -> None:
    memory = SimulatedMemory(room=10**15, fixed=0, a_token=1)
    assert by_trial(memory.toy(), ROWS, memory, max_rows=20) == rounded(20 * LARGEST)
    assert max(memory.tried) == 20 * LARGEST


def test_a_quick_way_to_need_the_memory_is_used_where_there_is_one() -> None:
    class Quick(Toy):
        rehearsed: tuple[int, ...] = ()

        def rehearse(self, rows: Sequence[Prepared], width: int) -> None:
            self.rehearsed = (*self.rehearsed, len(rows))

        def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
            raise AssertionError("a whole batch is not needed")

    toy = Quick()
    by_trial(toy, ROWS[:20], SimulatedMemory(10**9, 0, 1))
    assert toy.rehearsed[:3] == (1, FIRST, SECOND)


def test_what_is_foretold() -> None:
    assert foretell((2, 300), (8, 900), 10_100) == 100
    assert foretell((2, 300), (8, 900), 100) == 1
    assert foretell((2, 800), (8, 800), 100_000) <= 8 * 1000  # nothing is free, whatever two small ones show


def test_round_numbers() -> None:
    assert [rounded(number) for number in (1, 7, 8, 9, 4095, 4096, 100_000)] == [1, 7, 8, 8, 3584, 4096, 98304]


def test_a_trial_at_which_workers_die_is_given_up(tmp_path: Path) -> None:
    assert [may_try(tmp_path / "trial.json") for _ in range(MOST_ATTEMPTS + 2)] == [True] * MOST_ATTEMPTS + [False] * 2
