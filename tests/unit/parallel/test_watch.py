"""The thread that takes a group down when a rank asks to recover, and what is asked for in which generation."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from drumline.parallel.groups import Watch
from drumline.parallel.side_channel import Alone, Recovery, StoreChannel


@pytest.fixture
def store() -> dist.Store:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def sides(store: dist.Store) -> Iterator[tuple[StoreChannel, StoreChannel]]:
    yield StoreChannel(store, 0, 2, 5.0), StoreChannel(store, 1, 2, 5.0)


def test_it_acts_once_when_a_rank_asks(sides: tuple[StoreChannel, StoreChannel]) -> None:
    acted = threading.Event()
    watch = Watch(sides[0], acted.set, pause_s=0.005)
    assert not acted.wait(0.05)
    sides[1].ask_to_recover({"kind": "out_of_memory"})
    assert acted.wait(5)
    watch.stop()
    assert not watch.is_alive()


def test_it_ends_when_told_to(sides: tuple[StoreChannel, StoreChannel]) -> None:
    acted = threading.Event()
    watch = Watch(sides[0], acted.set, pause_s=0.005)
    watch.stop()
    assert not watch.is_alive() and not acted.is_set()


def test_the_first_reason_stays_until_the_next_generation(sides: tuple[StoreChannel, StoreChannel]) -> None:
    first, second = sides
    assert first.asked() is None
    first.ask_to_recover({"rank": 0})
    second.ask_to_recover({"rank": 1})
    assert first.asked() == second.asked() == {"rank": 0}
    first.next_generation()
    assert first.asked() is None and second.asked() == {"rank": 0}


def test_a_rank_that_waits_hears_of_it(sides: tuple[StoreChannel, StoreChannel]) -> None:
    sides[1].ask_to_recover({"rank": 1})
    with pytest.raises(Recovery):
        sides[0].exchange("update")


def test_one_that_stands_by_takes_part_and_goes_on_waiting(sides: tuple[StoreChannel, StoreChannel]) -> None:
    first, second = sides
    second.ask_to_recover({"rank": 1})
    answers: list[object] = []

    def other() -> None:
        second.next_generation()
        answers.append(second.exchange("log", "there"))

    thread = threading.Thread(target=other)

    def join() -> None:
        first.next_generation()
        thread.start()

    first.join = join
    assert first.exchange("log", "here") == ["here", "there"]
    thread.join(5)
    assert answers == [["here", "there"]]


def test_alone_nobody_asks() -> None:
    side = Alone()
    side.ask_to_recover({"rank": 0})
    assert side.asked() is None
    side.next_generation()
    assert side.generation == 1
