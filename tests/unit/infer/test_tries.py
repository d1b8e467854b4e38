from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from drumline.errors import ConfigError, DataError
from drumline.infer.answers import Encoded
from drumline.infer.ledger import Lease, Ledger
from drumline.infer.planning import plan_window
from drumline.infer.records import Answer, Part, Prepared
from drumline.infer.tries import DIED, Failure, Tries, WorkerLost, in_smaller, parts_of, shape_of
from drumline.infer.trouble import trouble_file
from drumline.infer.worker_record import worker_name
from drumline.predictions import PredictionDir
from tests.unit.infer.toy import Toy, begin, texts

NUM, MAX_DEATHS = 8, 3


def answered(done: tuple[Lease, Sequence[Encoded]]) -> tuple[Lease, list[Answer]]:
    return done[0], [each.answer for each in done[1]]


class Bench:
    """One batch of eight rows, taken by one worker after another."""

    def __init__(self, tmp_path: Path) -> None:
        directory, _ = begin(tmp_path / "out.jsonl", texts(NUM))
        self.path = directory.path
        self.ledger = self.open()
        found = Toy().prepare(self.ledger.read(range(NUM)))
        self.prepared = {row.number: row for row in found if isinstance(row, Prepared)}
        self.ledger.plan_next(lambda row, batch, number: plan_window(number, row, batch, found, 10_000, 64))
        self.calm = self.run(Toy())[1]

    def open(self) -> Ledger:
        return Ledger(self.path, worker_name())

    def take(self) -> Lease:
        lease = self.ledger.take()
        assert lease is not None
        return lease

    def run(self, toy: Toy) -> tuple[Lease, list[Answer]]:
        """By a worker that gives it back, so that the next has it."""
        lease = self.take()
        try:
            return answered(Tries(self.ledger, toy, MAX_DEATHS).run(lease, self.prepared))
        finally:
            self.ledger.give_back(lease)

    def run_unended(self, toy: Toy) -> tuple[Lease, list[Answer]]:
        """As run, by a worker that gives nothing back."""
        return answered(Tries(self.ledger, toy, MAX_DEATHS).run(self.take(), self.prepared))

    def renew(self) -> None:
        """After a death: its locks are gone with it, and nothing was given back."""
        self.ledger.close()
        self.ledger = self.open()


class Death(BaseException):
    """What a process dies of, here seen by the test."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.ledger.close()


def by_row(lease: Lease, answers: Sequence[Answer]) -> dict[int, Answer]:
    return dict(zip(lease.batch.rows, answers, strict=True))


def when(rows: set[int], error: Callable[[], BaseException]) -> Toy:
    def hook(there: Sequence[int], num: int, width: int) -> None:
        if rows & set(there):
            raise error()

    return Toy(hook=hook)


def test_a_batch_that_goes_through_is_run_once(bench: Bench) -> None:
    toy = Toy()
    lease, answers = bench.run(toy)
    assert len(toy.ran) == 1
    assert lease.parts is None
    assert [answer["place"] for answer in answers] == list(range(NUM))


@pytest.mark.parametrize("bad", [{3}, {0, 7}, {1, 2, 3, 4, 5}, set(range(NUM))], ids=str)
def test_rows_that_raise_are_found_and_the_rest_have_the_answers_of_the_whole(bench: Bench, bad: set[int]) -> None:
    lease, answers = bench.run(when(bad, lambda: KeyError("field")))
    found = by_row(lease, answers)
    calm = by_row(lease, bench.calm)
    assert {row for row, answer in found.items() if answer == {"error": "KeyError: 'field'"}} == bad
    assert {row: found[row] for row in range(NUM) if row not in bad} == {
        row: calm[row] for row in range(NUM) if row not in bad
    }


def test_a_found_row_is_not_run_by_the_next_worker(bench: Bench) -> None:
    bench.run(when({3}, lambda: ValueError("bad")))
    toy = Toy()
    lease, answers = bench.run(toy)
    assert by_row(lease, answers)[3] == {"error": "ValueError: bad"}
    assert 3 not in {row for batch in toy.ran for row in batch}


def test_the_message_is_one_line_of_bounded_length_and_a_known_error_s_own_words(bench: Bench) -> None:
    lease, answers = bench.run(when({3}, lambda: ValueError("x" * 9000 + "\nsecond line")))
    assert by_row(lease, answers)[3] == {"error": ("ValueError: " + "x" * 9000)[:500]}


def test_a_data_error_says_its_problem(bench: Bench) -> None:
    lease, answers = bench.run(when({5}, lambda: DataError("it has no words", "write some")))
    assert by_row(lease, answers)[5] == {"error": "it has no words"}


def test_memory_that_runs_out_halves_the_batch_and_the_shape(bench: Bench) -> None:
    def hook(rows: Sequence[int], num: int, width: int) -> None:
        shapes.append((num, width))
        if num > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    shapes: list[tuple[int, int]] = []
    lease, answers = bench.run(Toy(hook=hook))
    assert [num for num, _ in shapes] == [8, 4, 2, 2, 4, 2, 2]
    assert shapes[-1][1] < shapes[0][1]
    assert [answer["answer"] for answer in answers] == [answer["answer"] for answer in bench.calm]
    assert lease.parts is not None
    assert [part.shape for part in lease.parts] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    toy = Toy()
    assert bench.run(toy)[1] == answers  # the next worker begins with what has fitted
    assert [len(rows) for rows in toy.ran] == [2, 2, 2, 2]


def test_a_row_without_memory_alone_is_reported_with_its_length(bench: Bench) -> None:
    lease, answers = bench.run(when({6}, lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory")))
    length = bench.prepared[6].length
    assert by_row(lease, answers)[6] == {"error": f"out of memory even alone ({length} tokens)"}
    assert sum("error" in answer for answer in answers) == 1


def test_what_the_failed_batch_held_is_free_before_the_next_try(bench: Bench) -> None:
    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def hook(rows: Sequence[int], num: int, width: int) -> None:
        assert all(reference() is None for reference in held)
        large = Large()
        held.append(weakref.ref(large))
        try:
            raise ValueError("first")
        except ValueError as error:
            if num > 4:
                raise torch.OutOfMemoryError("CUDA out of memory.") from error

    gc.disable()
    try:
        bench.run(Toy(hook=hook))
    finally:
        gc.enable()
    assert len(held) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_breaks_it_off_is_heard(bench: Bench, error: type[BaseException]) -> None:
    with pytest.raises(error):
        bench.run(when({3}, error))
    assert bench.take().parts is None


def test_a_setting_that_cannot_work_is_no_row_s_fault(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="no model for it"):
        bench.run(when({3}, lambda: ConfigError("no model for it", "take another")))
    assert bench.take().parts is None


def test_a_wrong_number_of_answers_is_an_error(bench: Bench) -> None:
    class Short(Toy):
        def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
            return super().run(rows, width)[:1]

    _, answers = bench.run(Short())
    assert "error" not in answers[0]  # alone it has one answer, as it should


def test_a_lost_device_ends_the_worker_and_the_next_ones_find_the_row(bench: Bench) -> None:
    toy = when({3}, lambda: RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might ..."))
    lost = 0
    while True:
        try:
            lease, answers = bench.run(toy)
            break
        except WorkerLost as error:
            assert error.exit_status == 4
            lost += 1
    assert lost == 4  # of 8, 4, 2 and 1 rows
    calm = by_row(lease, bench.calm) | {3: {"error": "RuntimeError: CUDA error: device-side assert triggered"}}
    assert by_row(lease, answers) == calm


@pytest.mark.parametrize(
    ("cause", "reason"), [(torch.OutOfMemoryError("CUDA out of memory"), "out of memory"), (ValueError("bad"), "bad")]
)
def test_what_a_whole_team_is_lost_by_is_noted_as_what_it_was(bench: Bench, cause: Exception, reason: str) -> None:
    def fail() -> Exception:
        error = WorkerLost("a process of this worker's team failed", "another takes its place")
        error.__cause__ = cause
        return error

    with pytest.raises(WorkerLost, match=reason):
        bench.run(when({3}, fail))
    parts = bench.take().parts
    assert parts is not None and [len(part.rows) for part in parts] == [4, 4]


def test_a_row_at_which_workers_die_is_found(bench: Bench) -> None:
    toy, deaths = when({3}, Death), 0
    while deaths < 20:
        try:
            lease, answers = bench.run_unended(toy)
            break
        except Death:
            deaths += 1
            bench.renew()
    assert deaths == MAX_DEATHS + 2 + MAX_DEATHS  # whole; in halves of four and of two rows; alone
    assert by_row(lease, answers) == by_row(lease, bench.calm) | {3: {"error": DIED}}


def test_deaths_of_others_accuse_nobody(bench: Bench) -> None:
    """A worker that is killed again and again, each time at another part, leaves no row without an answer."""
    for row in (0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 3):
        try:
            bench.run_unended(when({row}, Death))
        except Death:
            bench.renew()
    lease, answers = bench.run(Toy())
    assert answers == bench.calm
    assert lease.parts is not None


def test_smaller_parts() -> None:
    error, memory = Failure("bad"), Failure("no room", is_memory=True)
    rows = (4, 2, 9)
    assert in_smaller(Part(rows), error, rows) == [Part((4,)), Part((2, 9))]
    assert in_smaller(Part(rows), memory, rows) == [Part((4,), (0, 1)), Part((2, 9), (1, 3))]
    assert in_smaller(Part((2, 9), (1, 3)), error, rows) == [Part((2,), (1, 3)), Part((9,), (1, 3))]
    assert in_smaller(Part((4,), None, 1), error, rows) == [Part((4,), None, 1, "bad")]
    assert in_smaller(Part((9,)), memory, rows) == [Part((9,), (1, 3))]
    assert in_smaller(Part((9,), (1, 3)), memory, rows) == [Part((9,), (2, 3))]
    assert in_smaller(Part((9,), (2, 3)), memory, rows) == [Part((9,), (2, 3), 0, "no room")]
    assert in_smaller(Part((4,)), memory, (4,)) == [Part((4,), None, 0, "no room")]


@pytest.mark.parametrize("error", [ValueError, Death])
def test_memory_alone_decides_on_shapes_whatever_else_happens(bench: Bench, error: type[BaseException]) -> None:
    """A row fails, or workers die at it, where memory runs out too: its batch-mates' answers are the very same."""

    def small(rows: Sequence[int], num: int, width: int) -> None:
        if num > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def small_and_bad(rows: Sequence[int], num: int, width: int) -> None:
        if 3 in rows and (error is ValueError or num <= 4):
            raise error("bad")
        small(rows, num, width)

    while True:
        try:
            lease, answers = bench.run_unended(Toy(hook=small_and_bad))
            break
        except Death:
            bench.renew()
    found = by_row(lease, answers)
    bench.renew()
    trouble_file(PredictionDir(bench.path), 0).unlink()
    bench.ledger.give_back(lease)
    calm = by_row(*bench.run(Toy(hook=small)))
    assert set(found.pop(3)) == {"error"}
    del calm[3]
    assert found == calm
    assert {answer["shape"][0] for answer in calm.values()} == {4}


@pytest.mark.parametrize("value", [10**5000, object(), float], ids=["digits", "object", "type"])
def test_an_answer_that_json_has_no_form_for_is_its_row_s_error(bench: Bench, value: object) -> None:
    class Odd(Toy):
        def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
            there = [row.number for row in rows if row is not None]
            found = super().run(rows, width)
            return [answer | {"odd": value} if row == 5 else answer for row, answer in zip(there, found, strict=True)]

    lease, answers = bench.run(Odd())
    found, calm = by_row(lease, answers), by_row(lease, bench.calm)
    assert set(found.pop(5)) == {"error"}
    assert found == {row: answer for row, answer in calm.items() if row != 5}


def test_a_sign_of_life_is_given_before_each_try(bench: Bench) -> None:
    beats: list[int] = []
    toy = when({3}, lambda: ValueError("bad"))
    Tries(bench.ledger, toy, MAX_DEATHS, lambda: beats.append(len(toy.ran))).run(bench.take(), bench.prepared)
    assert beats == list(range(len(toy.ran)))


def test_shapes(bench: Bench) -> None:
    lease = bench.take()
    rows, width = lease.batch.rows, lease.batch.width
    assert parts_of(lease) == (Part(rows),)
    found, wide = shape_of(lease.batch, Part(rows[2:4]), bench.prepared)
    assert [None if row is None else row.number for row in found] == [None, None, *rows[2:4], None, None, None, None]
    assert wide == width
    found, narrow = shape_of(lease.batch, Part(rows[3:4], (2, 4)), bench.prepared)
    assert [None if row is None else row.number for row in found] == [None, rows[3]]
    assert narrow == bench.prepared[rows[2]].length < width
