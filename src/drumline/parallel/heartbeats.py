"""Heart-beats: where each rank is, on the store, for when the groups are stuck; posted and read by a thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch.distributed as dist


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Beat:
    """Where one rank was at one moment, as it says itself."""

    count: int = 0
    """Which of its beats it is."""
    step: int = 0
    """Completed updates."""
    place: str = "the start"
    idle_s: float = 0.0
    """How long it has been at this place."""
    busy: str | None = None
    """Long work of its own that it has said it is at."""
    away: bool = False
    """Whether it was in no call of the trainer's; such a rank sends no beats."""
    stack: Sequence[Frame] = ()
    """Of the thread that trains, innermost first, shortened."""
    line: Frame | None = None
    """The innermost line of the user's; without one, of drumline's."""
    pending: Sequence[str] = ()
    """Collectives that it has begun and not ended; looked for only when somebody raises the alarm."""
    threads: Mapping[str, Sequence[Frame]] | None = None
    """Stacks of its other threads that do something; likewise."""
    host: str = ""
    space: str = ""
    """Where its process number means something: its machine and container; empty where that is not known."""
    pid: int = 0
    born: int = 0
    """When its process was started: the number may be used again."""
    own_s: float = 0.0
    """Seconds that it has spent on its own work in updates, not waiting for others; for stragglers."""
    updates: int = 0
    """Updates that these seconds are of."""

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Beat:
        """Back from text."""
        values = json.loads(text)
        values["stack"] = frames(values["stack"])
        values["line"] = None if values["line"] is None else Frame(*values["line"])
        if values["threads"] is not None:
            values["threads"] = {name: frames(stack) for name, stack in values["threads"].items()}
        return cls(**values)


def frames(values: Sequence[Sequence[Any]]) -> tuple[Frame, ...]:
    """Lines of a stack from plain lists."""
    return tuple(Frame(*each) for each in values)


@dataclass(frozen=True)
class Heard:
    """The newest beat of a rank, and how long ago it came, by this process's own clock."""

    beat: Beat
    silent_s: float = 0.0


class Heartbeats:
    """The beats of all ranks on a store, with the alarm and what belongs to it. Used by one thread at a time.

    The store client is its own: another one may be in a request that waits.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._keys = [f"beat/{other}" for other in range(size)]
        self._details = [f"detail/{other}" for other in range(size)]
        self.heard: list[Heard | None] = [None] * size
        """By rank; None: nothing has come yet."""

    def post(self, beat: Beat) -> None:
        """Say where this rank is."""
        self._store.set(self._keys[self._rank], beat.to_json())

    def listen(self, elapsed_s: float) -> None:
        """Read the newest beats; `elapsed_s`: since this was last called."""
        for rank, beat in enumerate(self._read(self._keys)):
            before = self.heard[rank]
            if beat is None:
                continue
            same = before is not None and before.beat.count == beat.count
            self.heard[rank] = Heard(beat, before.silent_s + elapsed_s if same and before is not None else 0.0)

    def _read(self, keys: Sequence[str]) -> list[Beat | None]:
        there = [self._store.check([key]) for key in keys]
        return [Beat.from_json(self._store.get(key)) if found else None for key, found in zip(keys, there, strict=True)]

    def raise_alarm(self, reporter: int) -> None:
        """Say that the run hangs, and which rank is to report it. The first one to say so is heard."""
        self._store.compare_set("hang", "", str(reporter))

    def alarm(self) -> int | None:
        """The rank that reports, once somebody has raised the alarm."""
        return int(self._store.get("hang")) if self._store.check(["hang"]) else None

    def testify(self, beat: Beat) -> None:
        """Give this rank's full account after an alarm."""
        self._store.set(self._details[self._rank], beat.to_json())

    def testimonies(self) -> list[Beat | None]:
        """The accounts that have been given, by rank."""
        return self._read(self._details)

    def publish(self, problem: str, fix: str) -> None:
        """Give the report to the other ranks."""
        self._store.set("report", json.dumps([problem, fix]))

    def published(self) -> tuple[str, str] | None:
        """Problem and fix as the reporting rank gave them."""
        if not self._store.check(["report"]):
            return None
        problem, fix = json.loads(self._store.get("report"))
        return problem, fix
