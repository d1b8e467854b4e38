from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drumline.errors import DataError, Interrupted
from drumline.infer.answers import AnswersIndex
from drumline.infer.ledger import Lease, Ledger
from drumline.infer.planning import plan_window
from drumline.infer.records import Facts, Part, Prepared, Window
from drumline.infer.rows import rows_of, write_rows
from drumline.infer.trouble import Trouble, read_trouble
from drumline.predictions import DONE, PredictionDir, ProgressReader
from drumline.rundir import read_json, read_lines

Opener = Callable[[str], Ledger]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Opener]:
    """Opens ledgers of a run with ten rows of equal lengths, in batches of two and windows of four."""
    write_rows(PredictionDir(tmp_path), rows_of([f"row {number}" for number in range(10)]), {})
    opened = []

    def open_one(worker: str) -> Ledger:
        opened.append(Ledger(tmp_path, worker))
        return opened[-1]

    yield open_one
    for ledger in opened:
        ledger.close()


def planner(ledger: Ledger) -> Callable[[int, int, int], Window]:
    def plan(first_row: int, first_batch: int, number: int) -> Window:
        rows = ledger.read(range(first_row, min(first_row + 4, ledger.num_rows)))
        return plan_window(number, first_row, first_batch, [Prepared(row.number, 5, 5) for row in rows], 10, 8)

    return plan


def planned(ledger: Ledger) -> Ledger:
    while ledger.plan_next(planner(ledger)):
        continue
    return ledger


def must_take(ledger: Ledger) -> Lease:
    lease = ledger.take()
    assert lease is not None
    return lease


def finish(ledger: Ledger, lease: Lease) -> None:
    ledger.finish(lease, [{"answer": row} for row in lease.batch.rows])


def test_rows_are_planned_window_by_window_until_all_are(run: Opener) -> None:
    ledger = run("a")
    assert not ledger.is_planned
    assert ledger.take() is None
    assert [ledger.plan_next(planner(ledger)) for _ in range(4)] == [True, True, True, False]
    assert ledger.is_planned
    assert ledger.num_open == 5
    assert not ledger.is_done


def test_two_workers_share_the_batches_and_the_run_ends_when_all_are_done(run: Opener) -> None:
    first, second = planned(run("a")), run("b")
    taken = []
    while (lease := first.take()) is not None:
        other = second.take()
        for ledger, each in ((first, lease), (second, other)):
            if each is not None:
                taken.append(each.batch.number)
                finish(ledger, each)
    assert taken == [0, 1, 2, 3, 4]
    assert first.is_done
    assert second.is_done
    index = AnswersIndex(first.directory)
    assert [index.read(number) for number in (0, 4)] == [
        {0: {"answer": 0}, 1: {"answer": 1}},
        {8: {"answer": 8}, 9: {"answer": 9}},
    ]
    assert ProgressReader(first.directory.path).look().rows_done == 10


def test_a_batch_that_another_holds_is_taken_once_it_is_free(run: Opener) -> None:
    first, second = planned(run("a")), run("b")
    held = [must_take(first) for _ in range(5)]
    assert second.take() is None
    first.give_back(held[2])
    lease = must_take(second)
    assert (lease.batch, lease.starts) == (held[2].batch, 0)


def test_what_a_worker_held_when_it_died_counts_as_begun(run: Opener, tmp_path: Path) -> None:
    first = planned(run("a"))
    must_take(first)
    first.close()
    second = run("b")
    lease = must_take(second)
    assert (lease.batch.number, lease.starts) == (0, 1)
    assert PredictionDir(tmp_path).state.read_bytes() == bytes([2, 0, 0, 0, 0])
    finish(second, lease)
    assert PredictionDir(tmp_path).state.read_bytes() == bytes([DONE, 0, 0, 0, 0])


def test_only_the_part_that_runs_counts_as_begun(run: Opener) -> None:
    first = planned(run("a"))
    lease = must_take(first)
    assert first.begin(lease, 0) == lease
    lease = first.split(lease, [Part((0,)), Part((1,))], "out of memory")
    first.begin(lease, 0)
    lease = first.begin(lease, 1)
    assert [part.starts for part in lease.parts or ()] == [0, 1]
    first.close()
    second = run("b")
    lease = must_take(second)
    assert [part.starts for part in lease.parts or ()] == [0, 1]
    second.begin(lease, 1)
    second.give_back(lease)
    second.give_back(lease)
    lease = must_take(second)
    assert [part.starts for part in lease.parts or ()] == [0, 1]
    assert lease.starts == 1


def test_a_split_is_noted_with_its_reason(run: Opener, tmp_path: Path) -> None:
    ledger = planned(run("a"))
    lease = must_take(ledger)
    with pytest.raises(ValueError, match="not its rows"):
        ledger.split(lease, [Part((0,))], "lost one")
    lease = ledger.split(lease, [Part((0,), (0, 1)), Part((1,), (1, 2))], "out of memory")
    ledger.split(lease, [Part((0,), (0, 1), problem="bad"), Part((1,), (1, 2))], "it fails")
    noted = read_json(tmp_path / "ledger/trouble/0.json")
    assert noted["reasons"] == ["out of memory", "it fails"]
    assert noted["parts"][0] == {"rows": [0], "shape": [0, 1], "starts": 0, "problem": "bad"}
    assert read_trouble(PredictionDir(tmp_path), 0) == Trouble(
        (Part((0,), (0, 1), problem="bad"), Part((1,), (1, 2))), ("out of memory", "it fails")
    )
    events = list(read_lines(tmp_path / "events.jsonl"))
    assert [(event["event"], event["batch"], event["reason"]) for event in events] == [
        ("batch_split", 0, "out of memory"),
        ("batch_split", 0, "it fails"),
    ]


def test_all_agree_on_what_the_first_one_found(run: Opener) -> None:
    first, second = run("a"), run("b")
    assert first.agree(lambda: {"tokens": 64}) == {"tokens": 64}
    assert second.agree(lambda: {"tokens": 32}) == {"tokens": 64}


def test_who_waits_for_the_facts_heeds_a_stop(run: Opener, tmp_path: Path) -> None:
    first, second = run("a"), Ledger(tmp_path, "b", stop=lambda: True)

    def find() -> Facts:
        with pytest.raises(Interrupted):
            second.agree(lambda: {"tokens": 32})
        return {"tokens": 64}

    try:
        assert first.agree(find) == {"tokens": 64}
    finally:
        second.close()


def test_an_answer_that_json_refuses_leaves_the_batch_to_others(run: Opener) -> None:
    first, second = planned(run("a")), run("b")
    lease = must_take(first)
    with pytest.raises(ValueError, match="digits"):
        first.finish(lease, [{"answer": 10**5000}, {}])
    again = must_take(second)
    assert (again.batch, again.starts) == (lease.batch, 0)


def test_one_plans_at_a_time(run: Opener) -> None:
    first, second = run("a"), run("b")

    def plan(first_row: int, first_batch: int, number: int) -> Window:
        assert not second.plan_next(planner(second))
        return planner(first)(first_row, first_batch, number)

    assert first.plan_next(plan)
    assert second.plan_next(planner(second))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda row, batch, number: plan_window(number, row, batch, [Prepared(row + 1, 1, 1)], 9, 9),
            "each of its rows",
        ),
        (lambda row, batch, number: plan_window(number, row, batch + 1, [Prepared(row, 1, 1)], 9, 9), "numbered"),
        (lambda row, batch, number: plan_window(number, row, batch, [], 9, 9), "planned as"),
    ],
)
def test_a_plan_with_a_hole_is_refused(run: Opener, wrong: Callable[[int, int, int], Window], message: str) -> None:
    ledger = run("a")
    with pytest.raises(ValueError, match=message):
        ledger.plan_next(wrong)
    assert planned(ledger).is_planned


def test_a_full_disk_loses_nothing(run: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = planned(run("a"))
    finish(ledger, must_take(ledger))
    lease = must_take(ledger)
    real = os.write
    room = iter([10])

    def write(file: int, data: memoryview) -> int:
        """Some of it; then there is no room."""
        return real(file, data[: next(room, 0)])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space") as caught:
        finish(ledger, lease)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert [json.loads(line)["batch"] for line in (tmp_path / "ledger/answers/a.jsonl").read_text().splitlines()] == [0]
    again = must_take(ledger)
    assert (again.batch, again.starts) == (lease.batch, 0)
    finish(ledger, again)
    with pytest.raises(ValueError, match="not held"):
        finish(ledger, again)
    assert 1 in AnswersIndex(ledger.directory)


def test_a_run_that_is_over_can_be_opened_without_its_rows(run: Opener, tmp_path: Path) -> None:
    ledger = planned(run("a"))
    while (lease := ledger.take()) is not None:
        finish(ledger, lease)
    PredictionDir(tmp_path).rows.unlink()
    late = run("b")
    assert late.is_done
    assert late.take() is None
    with pytest.raises(DataError, match="gone"):
        late.read([0])


def test_no_rows_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows yet"):
        Ledger(tmp_path, "a")


def test_an_empty_input_is_done_at_once(tmp_path: Path) -> None:
    write_rows(PredictionDir(tmp_path), [], {})
    ledger = Ledger(tmp_path, "a")
    assert ledger.is_planned
    assert ledger.is_done
    assert ledger.take() is None
    ledger.close()


def test_many_batches_are_taken_without_going_through_them_all(tmp_path: Path) -> None:
    directory = PredictionDir(tmp_path)
    write_rows(directory, [], {})
    facts = read_json(directory.rows_facts)
    directory.rows_facts.write_text(json.dumps(facts | {"num_rows": 5_000}))
    ledger = Ledger(tmp_path, "a")
    assert ledger.plan_next(
        lambda row, batch, number: plan_window(number, row, batch, [Prepared(n, 1, 1) for n in range(5_000)], 1, 1)
    )
    states = bytearray([DONE]) * 5_000
    states[4_990:] = bytes(10)
    directory.state.write_bytes(states)
    opened = []
    real = os.pread

    def counted(file: int, size: int, place: int) -> bytes:
        opened.append(size)
        return real(file, size, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", counted)
        assert must_take(ledger).batch.number == 4_990
        must_take(ledger)
    assert opened == [5_000, 1, 10, 1]
    ledger.close()
