"""Streams in one event loop: what is sent, who is told, and that a listener who goes takes nothing from others."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.errors import Busy, StoreError
from drumline.service import streams as streams_module
from drumline.service.event_stream import Event, EventReader
from drumline.service.streams import Source, Streams
from drumline.service.tails import Place


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "LOOK_S", 0.01)
    monkeypatch.setattr(streams_module, "JOBS_S", 0.02)


def _source(path: Path, has_ended: Callable[[str], bool] = lambda _: False) -> Source:
    return Source(path, "job-1", True, has_ended)


async def _hear(streams: Streams, source: Source, place: Place, *, has_ended: bool = False) -> list[Event]:
    reader, events = EventReader(), []
    async for chunk in streams.follow(source, place, has_ended=has_ended):
        events += list(reader.feed(chunk))
    return events


def test_an_ended_jobs_file_is_sent_whole_and_then_the_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nno record\n{"step": 2}')
    events = asyncio.run(_hear(Streams(5), _source(path), Place(), has_ended=True))
    assert [(event.name, event.data) for event in events] == [
        ("record", {"step": 1}),
        ("record", {"step": 2}),
        ("end", {}),
    ]
    again = Place.parse(events[0].id)
    assert [event.name for event in asyncio.run(_hear(Streams(5), _source(path), again, has_ended=True))] == [
        "record",
        "end",
    ]


def test_the_end_comes_after_what_was_written_last_though_the_store_fails_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    looks = []

    def has_ended(job_id: str) -> bool:
        looks.append(job_id)
        if len(looks) == 1:
            raise StoreError("the store is away", "wait")
        path.write_text('{"step": 1}\n')
        return len(looks) > 2

    events = asyncio.run(asyncio.wait_for(_hear(Streams(5), _source(path, has_ended), Place()), 10))
    assert [event.name for event in events] == ["record", "end"]


def test_a_listener_that_goes_takes_nothing_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    ended: list[str] = []

    async def listen() -> tuple[list[Event], int]:
        streams, source = Streams(5), _source(path, lambda _: bool(ended))
        gone, stays = (asyncio.create_task(_hear(streams, source, Place())) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0.05)
        ended.append("job-1")
        return await asyncio.wait_for(stays, 10), streams.num_open

    events, num_open = asyncio.run(listen())
    assert [event.name for event in events] == ["record", "end"] and num_open == 0


def test_all_streams_end_when_the_server_does(tmp_path: Path) -> None:
    async def listen() -> list[Event]:
        streams = Streams(5)
        heard = asyncio.create_task(_hear(streams, _source(tmp_path / "none"), Place()))
        await asyncio.sleep(0.03)
        streams.closing.set()
        return await asyncio.wait_for(heard, 10)

    assert asyncio.run(listen()) == []


def test_there_is_room_for_so_many(tmp_path: Path) -> None:
    streams = Streams(1)
    streams.check_room()
    streams.num_open = 1
    with pytest.raises(Busy, match="1 streams"):
        streams.check_room()


@pytest.mark.parametrize("grows", [True, False])
def test_who_may_no_longer_listen_hears_nothing_more_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    monkeypatch.setattr(streams_module, "VALID_S", 0.02)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    asked: list[int] = []

    def is_valid() -> bool:
        asked.append(threading.get_ident())
        if len(asked) == 1:
            raise StoreError("the store is away", "wait")
        if grows:
            path.write_text('{"step": 1}\n{"step": 2}\n' + '{"step": 3}\n' * len(asked))
        return len(asked) < 4

    async def listen() -> tuple[list[Event], int]:
        streams, reader, events = Streams(5), EventReader(), []
        async for chunk in streams.follow(_source(path), Place(), has_ended=False, is_valid=is_valid):
            events += list(reader.feed(chunk))
        return events, streams.num_open

    events, num_open = asyncio.run(asyncio.wait_for(listen(), 10))
    assert {event.name for event in events} == {"record"} and num_open == 0
    assert len(asked) == 4 and threading.get_ident() not in asked


def test_many_listeners_are_woken_a_few_at_a_time() -> None:
    async def watch() -> list[int]:
        waiting = [asyncio.get_running_loop().create_future() for _ in range(5 * streams_module.AT_ONCE)]
        waiting[1].cancel()  # its listener left
        task, seen = asyncio.create_task(streams_module._wake(waiting)), []
        while not task.done():
            await asyncio.sleep(0)
            seen.append(sum(each.done() for each in waiting))
        await task
        return seen

    seen = asyncio.run(watch())
    steps = {later - earlier for earlier, later in itertools.pairwise(seen)}
    assert seen[-1] == 5 * streams_module.AT_ONCE and max(steps) <= streams_module.AT_ONCE


def test_a_listener_who_waits_in_vain_leaves_nothing() -> None:
    async def wait() -> int:
        watched = streams_module._Watched()
        with pytest.raises(TimeoutError):
            await watched.wait(0, 0.01)
        return len(watched.waiting)

    assert asyncio.run(wait()) == 0
