"""The pulse: what each rank is at, seen by a thread of its own, which ends a run that hangs with names.

The thread that trains writes attributes here and does no more: no store, no file, no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from torch.distributed import DistError

from drumline.engine.wake import interruptible
from drumline.engine.watcher import BEAT_S, LOST_BEATS, Watcher, seen_at
from drumline.errors import DrumlineError, Interrupted
from drumline.launcher.failures import LAST_SEEN_MARK, PLACE_MARK, calling_line, failure_of
from drumline.parallel.groups import Groups
from drumline.parallel.heartbeats import Heartbeats
from drumline.parallel.side_channel import StoreChannel
from drumline.rundir import RunDir

T = TypeVar("T")


class Pulse:
    """Where this rank's training stands. Made without groups it watches nothing."""

    def __init__(
        self, groups: Groups | None = None, limit_s: float = 600.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.groups = groups
        self.limit_s = limit_s
        """Longest time without progress; half of it once there was an update."""
        self.period_s = 30.0
        """How often rank 0 compares the ranks."""
        self.directory: RunDir | None = None
        """Where the report goes; None before there is a run."""
        self.place = "the start"
        self.marks = 0
        """Counts up with every step forward."""
        self.step = 0
        self.updates = 0
        """Of this process."""
        self.own_s = 0.0
        """Seconds of this rank's own work in these updates."""
        self.long_work: list[str] = []
        """What `busy` was entered with and not left."""
        self._clock = clock
        self._since = clock()
        self._owned = False
        self._watcher: Watcher | None = None
        self._hearts: Heartbeats | None = None

    def at(self, place: str, *, own: bool = True) -> None:
        """The training thread comes to this place. own: what follows depends on no other rank."""
        now = self._clock()
        if self._owned:
            self.own_s += now - self._since
        self._since, self._owned = now, own
        self.place = place
        self.marks += 1

    def through(self, parts: Sequence[T], place: str) -> Sequence[T]:
        """These parts, each marked as a place when it is come to; the last one is not this rank's own work.

        In its backward pass the ranks wait for each other.
        """
        return _Marked(parts, self, place)

    def updated(self, step: int) -> None:
        """An update is through; `step` are completed now."""
        self.step = step
        self.updates += 1
        self.at(f"after update {step}", own=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Inside, work that may take as long as it takes, while this rank's heart beats."""
        self.long_work.append(what)
        try:
            yield
        finally:
            self.long_work.remove(what)
            self.marks += 1

    @contextmanager
    def yours(self) -> Iterator[None]:
        """Around the body of a user's own loop: where nobody waits for it, it may take as long as it takes."""
        self.at(f"the body of your loop after update {self.step}")
        if self.groups is None or self.groups.world.size > 1:
            yield
        else:
            with self.busy("the body of your loop"):
                yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, a thread watches this rank and listens to the others; not a second one where there is one already."""
        if self.groups is None or self._watcher is not None:
            yield
            return
        self.marks += 1
        if self._hearts is None and self.groups.store is not None:
            world = self.groups.world
            self._hearts = Heartbeats(self.groups.own_store("pulse"), world.rank, world.size)
        watcher = self._watcher = Watcher(self, self._hearts)
        side = self.groups.side
        if isinstance(side, StoreChannel):
            side.excuse = self.are_at_long_work
        try:
            with interruptible(watcher.raise_here):
                watcher.start()
                try:
                    yield
                finally:
                    watcher.stop(calling_line())
        except GeneratorExit:
            raise
        except BaseException as error:
            self.note(error, watcher)
            raise
        finally:
            self._watcher = None
            self._owned = False
            if isinstance(side, StoreChannel):
                side.excuse = None

    def are_at_long_work(self, ranks: Sequence[int]) -> bool:
        """Whether each of these ranks is `busy`, and its heart beats meanwhile; takes some beats to find out."""
        assert self.groups is not None
        world = self.groups.world
        hearts = Heartbeats(self.groups.own_store("pulse"), world.rank, world.size)
        hearts.listen(0.0)
        before = [hearts.heard[rank] for rank in ranks]
        time.sleep(LOST_BEATS * min(BEAT_S, self.limit_s / 12))
        hearts.listen(0.0)
        now = [hearts.heard[rank] for rank in ranks]
        return all(
            old is not None and new is not None and new.beat.busy is not None and new.beat.count != old.beat.count
            for old, new in zip(before, now, strict=True)
        )

    def note(self, error: BaseException, watcher: Watcher) -> None:
        """Add to an exception where the run stood, and where another rank was seen last whose end has caused it."""
        if isinstance(error, KeyboardInterrupt | Interrupted):
            return
        notes = [str(note) for note in getattr(error, "__notes__", ())]
        if not isinstance(error, DrumlineError) and not any(note.startswith(PLACE_MARK) for note in notes):
            error.add_note(f"{PLACE_MARK}{self.place}, step {self.step}")
        if isinstance(error, DrumlineError) or self.groups is None or not failure_of(None, error).is_consequence:
            return
        with suppress(DistError):
            if self.groups.side.failure() is not None:
                return  # the rank that failed has said why
        for each in watcher.last_seen():
            if each.beat is not None:
                error.add_note(f"{LAST_SEEN_MARK}{each.rank}: {seen_at(each.beat)}")


class _Marked(tuple[T, ...]):
    """A tuple that marks what is iterated."""

    _pulse: Pulse
    _place: str

    def __new__(cls, parts: Sequence[T], pulse: Pulse, place: str) -> _Marked[T]:
        """As a tuple of the same parts."""
        made = super().__new__(cls, parts)
        made._pulse, made._place = pulse, place
        return made

    def __iter__(self) -> Iterator[T]:
        """Go through the parts."""
        total = len(self)
        for number, part in enumerate(super().__iter__(), 1):
            self._pulse.at(f"{self._place}, micro-batch {number} of {total}", own=number < total)
            yield part
