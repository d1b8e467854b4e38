from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drumline.infer.feeding import Feeder
from drumline.infer.ledger import Lease, Ledger
from drumline.infer.planning_ahead import Plan
from drumline.infer.rows_in_form import RowsInForm
from tests.unit.infer.toy import Toy, begin, texts

PLAN = Plan(tokens=10_000, max_rows=10, window=20)
NUM_BATCHES = 4


class Fed:
    """A feeder over four batches, and another worker of the same run."""

    def __init__(self, tmp_path: Path) -> None:
        path = begin(tmp_path / "out.jsonl", texts(40))[0].path
        self.mine, self.other = Ledger(path, "mine"), Ledger(path, "other")
        self.stops = False
        self.feeder = Feeder(self.mine, RowsInForm(self.mine, Toy()), PLAN, lambda: self.stops)
        limit = time.monotonic() + 10
        while not self.other.is_planned:  # by the feeder's own thread
            assert time.monotonic() < limit
            time.sleep(0.002)

    def finish(self, ledger: Ledger, lease: Lease) -> None:
        ledger.finish(lease, [{"answer": "a"}] * len(lease.batch.rows))
        self.feeder.look_again()

    def take_of_other(self) -> Lease:
        lease = self.other.take()
        assert lease is not None
        return lease


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Fed]:
    fed = Fed(tmp_path)
    yield fed
    fed.feeder.close()
    fed.mine.close()
    fed.other.close()


def later(action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.05, action)
    timer.start()
    return timer


def test_it_gives_all_batches_with_their_rows_and_then_ends(fed: Fed) -> None:
    seen: list[int] = []
    while (item := fed.feeder.next(0.001)) is not None:
        assert tuple(item.prepared) == item.lease.batch.rows
        seen.append(item.lease.batch.number)
        fed.finish(fed.mine, item.lease)
    assert seen == list(range(NUM_BATCHES))


def test_near_the_end_nothing_is_kept_in_hand_where_batches_are_slow(fed: Fed) -> None:
    assert fed.feeder.next() is not None
    others = [fed.take_of_other() for _ in range(NUM_BATCHES - 1)]
    assert [lease.batch.number for lease in others] == [1, 2, 3]


def test_it_waits_for_what_another_holds_and_takes_it_when_that_one_is_gone(fed: Fed) -> None:
    theirs = fed.take_of_other()
    for _ in range(NUM_BATCHES - 1):
        item = fed.feeder.next()
        assert item is not None
        fed.finish(fed.mine, item.lease)
    timer = later(fed.other.close)
    item = fed.feeder.next()
    timer.join()
    assert item is not None
    assert (item.lease.batch.number, item.lease.starts) == (theirs.batch.number, 1)


def test_it_ends_when_another_has_finished_the_last_one(fed: Fed) -> None:
    theirs = fed.take_of_other()
    for _ in range(NUM_BATCHES - 1):
        item = fed.feeder.next()
        assert item is not None
        fed.finish(fed.mine, item.lease)
    timer = later(lambda: fed.finish(fed.other, theirs))
    assert fed.feeder.next() is None
    timer.join()


def test_a_stop_ends_it_and_what_was_in_hand_is_given_back(fed: Fed) -> None:
    first = fed.feeder.next(0.001)
    assert first is not None
    fed.stops = True
    fed.feeder.look_again()
    fed.feeder.close()
    assert [fed.take_of_other().batch.number for _ in range(NUM_BATCHES - 1)] == [1, 2, 3]
    fed.mine.give_back(first.lease)
    assert fed.take_of_other().starts == 0


def test_what_fails_elsewhere_ends_the_wait_for_what_it_holds(fed: Fed) -> None:
    items = [fed.feeder.next() for _ in range(NUM_BATCHES)]
    assert None not in items  # all are held, and none is ever finished
    timer = later(lambda: fed.feeder.fail(ValueError("answers could not be kept")))
    with pytest.raises(ValueError, match="could not be kept"):
        fed.feeder.next()
    timer.join()


def test_closing_it_twice_is_allowed(fed: Fed) -> None:
    fed.feeder.close()
    fed.feeder.close()
