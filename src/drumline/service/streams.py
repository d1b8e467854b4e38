"""Server-sent events of files that grow: one look for all who listen, and nothing left of those who went."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from fastapi.sse import format_sse_event
from starlette.concurrency import run_in_threadpool

from drumline.errors import Busy, DrumlineError
from drumline.service.tails import READ_BYTES, RECORD_BYTES, Piece, Place, as_record, as_text, read_piece

logger = logging.getLogger("drumline.service")

LOOK_S = 0.25
"""Between two looks whether files grew."""
JOBS_S = 1.0
"""Between two looks whether jobs ended."""
VALID_S = 30.0
"""Between two looks whether who listens still may."""
HEARTBEAT_S = 15.0
"""A comment is sent when nothing else was for as long: proxies end what is silent."""
LINES = 500
"""Sent at once."""
MOST_PARTS = 4
"""Of one source that are kept in mind; those who listen to what is new are at one place."""
AT_ONCE = 8
"""Listeners that are woken together: to send to hundreds takes a tenth of a second, and others are to be answered."""
WAKING_S = LOOK_S / 2
"""Over which all of them are woken."""
END = "end"


@dataclass(frozen=True)
class Source:
    """A file of a job that somebody listens to."""

    path: Path
    job_id: str
    is_records: bool
    has_ended: Callable[[str], bool] = field(compare=False)
    """Whether a job has; called in a thread."""

    @property
    def longest(self) -> int:
        """Bytes of a line that is told whole."""
        return RECORD_BYTES if self.is_records else READ_BYTES


@dataclass(frozen=True)
class _Part:
    """A piece of a source, as it is sent."""

    events: bytes
    place: Place
    at_end: bool


@dataclass
class _Watched:
    """A source that is listened to."""

    num_listeners: int = 0
    state: tuple[int, int] | None = None
    """Inode and size, as seen last."""
    has_ended: bool = False
    num_changes: int = 0
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """One a listener that has all there is, in the order in which they came."""
    parts: dict[tuple[Place, bool], asyncio.Task[_Part]] = field(default_factory=dict)
    """What was read since the last change, by place: who listens from there too takes the same."""

    def change(self) -> list[asyncio.Future[None]]:
        """There is something new: who waits is to be woken."""
        self.parts = {}
        self.num_changes += 1
        waiting, self.waiting = list(self.waiting), {}
        return waiting

    async def wait(self, num_changes: int, most_s: float) -> None:
        """Until there were more changes than so many. Raises TimeoutError after a while."""
        if self.num_changes == num_changes:
            woken = asyncio.get_running_loop().create_future()
            self.waiting[woken] = None
            try:
                async with asyncio.timeout(most_s):
                    await woken
            finally:
                self.waiting.pop(woken, None)

    async def part(self, source: Source, place: Place, *, is_final: bool) -> _Part:
        """What follows a place, read once for all who are there."""
        task = self.parts.get((place, is_final))
        if task is None:
            if len(self.parts) >= MOST_PARTS:
                self.parts = {}
            task = asyncio.create_task(run_in_threadpool(read_part, source, place, is_final=is_final))
            self.parts[place, is_final] = task
        if task.done():
            return task.result()
        return await asyncio.shield(task)  # one listener that goes takes it from no other


class Streams:
    """All streams of this process."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.closing = threading.Event()
        """Set when the server ends: every stream ends within LOOK_S and WAKING_S: it need not wait for them."""
        self._watched: dict[Source, _Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._jobs_due = 0.0
        self.num_open = 0

    def check_room(self) -> None:
        """Raise Busy where as many are open as may be."""
        if self.num_open >= self._most:
            raise Busy(f"{self.num_open} streams are open, as many as may be", "close one, or ask without streaming")

    async def follow(
        self, source: Source, place: Place, *, has_ended: bool, is_valid: Callable[[], bool] = lambda: True
    ) -> AsyncIterator[bytes]:
        """Events from a place on: `line` or `record`, `rewritten` where the file begins anew, at last `end`.

        has_ended: whether the job has. is_valid: whether who listens still may; called in a thread now and then, and
        where it is not so, nothing follows, no `end` either. The id of each event is the place after it.
        """
        self.num_open += 1
        watched = self._listen(source, has_ended)
        due = time.monotonic() + VALID_S
        try:
            yield b": drumline\n\n"  # so that headers go out at once
            while not self.closing.is_set():
                if time.monotonic() >= due:
                    if not await run_in_threadpool(_still_may, is_valid):
                        return
                    due = time.monotonic() + VALID_S
                # Both before reading: what came meanwhile is then looked at again.
                is_final, num_changes = watched.has_ended, watched.num_changes
                part = await watched.part(source, place, is_final=is_final)
                place = part.place
                if part.events:
                    yield part.events
                if not part.at_end:
                    continue
                if is_final:
                    yield format_sse_event(event=END, data_str="{}", id=str(place))
                    return
                try:
                    await watched.wait(num_changes, min(HEARTBEAT_S, max(0.0, due - time.monotonic())))
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.num_open -= 1
            self._leave(source, watched)

    def _listen(self, source: Source, has_ended: bool) -> _Watched:
        watched = self._watched.setdefault(source, _Watched())
        watched.num_listeners += 1
        watched.has_ended |= has_ended
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_on(), name="drumline-streams")
        return watched

    def _leave(self, source: Source, watched: _Watched) -> None:
        watched.num_listeners -= 1
        if watched.num_listeners == 0:
            self._watched.pop(source, None)
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            with_jobs = now >= self._jobs_due
            self._jobs_due = now + JOBS_S if with_jobs else self._jobs_due
            running = {source: watched for source, watched in self._watched.items() if not watched.has_ended}
            try:
                ended, states = await run_in_threadpool(self._look, list(running), with_jobs)
            except DrumlineError as error:  # the store cannot be reached now; it is asked again
                logger.warning("streams wait: %s", error.problem)
                continue
            woken: list[asyncio.Future[None]] = []
            for source, watched in running.items():
                has_ended = source.job_id in ended
                if has_ended or self.closing.is_set() or states[source] != watched.state:
                    watched.state = states[source]
                    watched.has_ended |= has_ended  # somebody who came meanwhile may know better
                    woken += watched.change()
            await _wake(woken)

    def _look(self, sources: list[Source], with_jobs: bool) -> tuple[set[str], dict[Source, tuple[int, int] | None]]:
        """Which jobs have ended, and then how their files are; in a thread, as disks and the store may be slow."""
        jobs = {source.job_id: source for source in sources} if with_jobs else {}
        ended = {job_id for job_id, source in jobs.items() if source.has_ended(job_id)}
        return ended, {source: _state_of(source.path) for source in sources}


def read_part(source: Source, place: Place, *, is_final: bool) -> _Part:
    """Read what follows a place, and make events of it."""
    piece = read_piece(source.path, place, most=LINES, is_final=is_final, longest=source.longest)
    return _Part(encode(piece, is_records=source.is_records), piece.place, piece.at_end)


def encode(piece: Piece, *, is_records: bool) -> bytes:
    """A piece as events."""
    events = [format_sse_event(event="rewritten", data_str="{}", id="0")] if piece.is_rewritten else []
    for line, place in piece.lines:
        told = as_record(line) if is_records else as_text(line)
        if told is not None:
            data = json.dumps(told, ensure_ascii=False)
            events.append(format_sse_event(event="record" if is_records else "line", data_str=data, id=str(place)))
    return b"".join(events)


async def _wake(waiting: list[asyncio.Future[None]]) -> None:
    """Let those who wait go on, a few at a time."""
    pause_s = WAKING_S * AT_ONCE / max(AT_ONCE, len(waiting))
    for begin in range(0, len(waiting), AT_ONCE):
        if begin:
            await asyncio.sleep(pause_s)
        for each in waiting[begin : begin + AT_ONCE]:
            if not each.done():  # who left has cancelled it
                each.set_result(None)


def _still_may(is_valid: Callable[[], bool]) -> bool:
    try:
        return is_valid()
    except DrumlineError as error:  # the store cannot be reached now; it is asked again
        logger.warning("a stream goes on unasked: %s", error.problem)
        return True


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # many a second
    except OSError:
        return None
    return status.st_ino, status.st_size
