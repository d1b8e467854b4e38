"""Agreement between ranks over a key-value store: never over the group that may be stuck."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist

from drumline.errors import GroupError, PeerFailed
from drumline.launcher.failures import calling_line

logger = logging.getLogger("drumline")

SHORTEST_S, LONGEST_S = 2e-5, 0.05
"""Pauses between two looks at the store, each a fifth longer than the one before: what is waited too long stays small,
and torch, which writes two lines to the screen whenever a wait of its own times out, is not asked to wait."""
LOOK_S = 0.25
"""Between two looks for a failure, or for a rank that has gone elsewhere."""


class Recovery(Exception):
    """A rank has asked all others to give up the update at hand; they meet in the next generation of rounds."""


class SideChannel(Protocol):
    """Small messages between all ranks, in rounds that every rank takes part in."""

    generation: int
    """How often rounds have begun anew; what is asked for in one generation is forgotten in the next."""
    join: Callable[[], None] | None
    """Takes part in a recovery that another rank has asked for, from within `exchange`, which then begins its round
    anew; None: `exchange` raises Recovery."""

    def exchange(self, tag: str, payload: Any = None, limit_s: float | None = None) -> list[Any]:
        """Give a JSON value, get every rank's, by rank. All ranks must come with the same tag, within the limit."""
        ...

    def announce(self, place: str) -> None:
        """Say, without waiting, where this rank goes before the next round: it may get stuck there."""
        ...

    def call(self, word: str) -> None:
        """Call a word to all ranks, without waiting; it is forgotten with the next round."""
        ...

    def called(self, word: str) -> bool:
        """Whether any rank has called this word since the last round. Asks the store: not for every batch."""
        ...

    def leave(self, limit_s: float, *, failed: bool = False) -> None:
        """Say that this rank is done; rank 0, which may serve the store, stays until all have said so."""
        ...

    def report_failure(self, message: str) -> None:
        """Tell the others that this rank fails, so that they end at once and can say why."""
        ...

    def failure(self) -> str | None:
        """The first failure that any rank reported."""
        ...

    def ask_to_recover(self, reason: Mapping[str, Any]) -> None:
        """Ask all ranks to leave what they are at and meet in the next generation; the first one's reason stays."""
        ...

    def asked(self) -> dict[str, Any] | None:
        """The reason for which a rank has asked for that in this generation; None where nobody has."""
        ...

    def next_generation(self) -> None:
        """Begin rounds anew; all ranks come here after one of them has asked."""
        ...


class Alone:
    """The side channel of a world of one."""

    generation = 0
    join: Callable[[], None] | None = None

    def exchange(self, tag: str, payload: Any = None, limit_s: float | None = None) -> list[Any]:
        """Give back the one payload."""
        return [payload]

    def announce(self, place: str) -> None:
        """Nobody else is there."""

    def call(self, word: str) -> None:
        """Nobody else is there."""

    def called(self, word: str) -> bool:
        """Nobody else can have called."""
        return False

    def leave(self, limit_s: float, *, failed: bool = False) -> None:
        """Nobody else is there."""

    def report_failure(self, message: str) -> None:
        """Nobody else is there."""

    def failure(self) -> str | None:
        """Nobody else can have failed."""
        return None

    def ask_to_recover(self, reason: Mapping[str, Any]) -> None:
        """Nobody else is there."""

    def asked(self) -> dict[str, Any] | None:
        """Nobody else can have asked."""
        return None

    def next_generation(self) -> None:
        """Count it."""
        self.generation += 1


class StoreChannel:
    """The side channel over a torch store."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._round = 0
        self.generation = 0
        self.join: Callable[[], None] | None = None
        self.excuse: Callable[[Sequence[int]], bool] | None = None
        """Says whether ranks that do not come within the limit are to be waited for longer."""
        self._going: tuple[int, str] = (-1, "")
        """After which round this rank has said where it goes, and the place."""
        self._reads_many: bool = store.has_extended_api()  # type: ignore[attr-defined]  # a file store cannot

    def exchange(self, tag: str, payload: Any = None, limit_s: float | None = None) -> list[Any]:
        """Give a JSON value, get every rank's, by rank; limit_s: parallel.timeout_s where it is none.

        Raises GroupError naming the ranks that did not come within the limit, or that came to another place (a
        collective under a rank-0 guard), PeerFailed where another rank has reported a failure, and Recovery where one
        has asked for that, will not come any more, and nothing is set to take part from here.
        """
        while True:
            try:
                return self._exchange(tag, payload, self._timeout_s if limit_s is None else limit_s)
            except Recovery:
                if self.join is None:
                    raise
            self.join()

    def _exchange(self, tag: str, payload: Any, limit_s: float) -> list[Any]:
        self._round += 1
        keys = [self._key(self._round, rank) for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps([tag, payload]))
        self._wait(keys, tag, limit_s)
        store = self._store
        values = store.multi_get(keys) if self._reads_many else [store.get(key) for key in keys]
        answers = [json.loads(value) for value in values]
        # Everyone has posted this round, so everyone has read the round before.
        store.delete_key(self._key(self._round - 1, self._rank))
        tags = [answer[0] for answer in answers]
        if len(set(tags)) > 1:
            raise different_places({rank: f"{tag!r}{line}" for rank, (tag, line) in enumerate(self._lines(tags))})
        return [answer[1] for answer in answers]

    def _lines(self, tags: Sequence[str]) -> list[tuple[str, str]]:
        """Each rank's tag and the line of the user's that led to it; all ranks look for it, so all post theirs."""
        keys = [f"{self.generation}/where/{self._round}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], calling_line())
        self._poll(keys, 4 * LOOK_S, ignore)  # the line of a rank that is gone by now stays unknown
        lines = [self._store.get(key).decode() if self._store.check([key]) else "" for key in keys]
        return list(zip(tags, lines, strict=True))

    def announce(self, place: str) -> None:
        """Say, without waiting, where this rank goes before the next round: it may get stuck there.

        A rank that waits elsewhere for that round then knows that this one will never come.
        """
        self._going = (self._round, place)
        self._store.set(f"{self.generation}/at/{self._rank}", json.dumps(self._going))

    def call(self, word: str) -> None:
        """Call a word to all ranks, without waiting; it is forgotten with the next round."""
        self._store.set(self._word_key(word), "")

    def called(self, word: str) -> bool:
        """Whether any rank has called this word since the last round."""
        return bool(self._store.check([self._word_key(word)]))

    def _word_key(self, word: str) -> str:
        return f"{self.generation}/word/{self._round}/{word}"

    def leave(self, limit_s: float, *, failed: bool = False) -> None:
        """Say that this rank is done; rank 0, which may serve the store, stays until all have said so.

        Raises PeerFailed where another rank fails meanwhile; `failed`: this one has, and only lets the others read.
        """
        self._store.set(f"bye/{self._rank}", "")
        if self._rank != 0:
            return
        others = range(1, self._size)
        look = ignore if failed else self._look_for_failure
        absent = self._poll([f"bye/{rank}" for rank in others], limit_s, look)
        look(absent)  # a rank that failed has said goodbye too
        if absent:
            names = ", ".join(str(others[position]) for position in absent)
            logger.warning("rank 0 ends without rank %s, which did not come within %g s", names, limit_s)

    def _key(self, round_number: int, rank: int) -> str:
        return f"{self.generation}/round/{round_number}/{rank}"

    def _wait(self, keys: Sequence[str], tag: str, limit_s: float) -> None:
        look = partial(self._look_for, keys, tag)
        absent, excused = self._poll(keys, limit_s, look), True
        while absent and excused:
            excused = self.excuse is not None and self.excuse(absent)
            absent = self._poll(keys, limit_s if excused else 0.0, look)  # one may have come while that was found out
        if absent:
            raise GroupError(
                f"rank {self._rank} waited {limit_s:g} s at {tag!r} for rank {', '.join(map(str, absent))}",
                "start every rank, see what the absent ones were doing, or raise parallel.timeout_s",
            )

    def _poll(self, keys: Sequence[str], limit_s: float, look: Callable[[Sequence[int]], None]) -> list[int]:
        """Wait until all keys are there; returns the positions of those that are not within the limit."""
        wanted, pause = list(keys), SHORTEST_S
        began = looked = time.monotonic()
        while not self._store.check(wanted):
            now = time.monotonic()
            if now - looked > LOOK_S or now - began > limit_s:
                looked = now
                absent = [position for position, key in enumerate(keys) if not self._store.check([key])]
                look(absent)
                if now - began > limit_s:
                    return absent
            time.sleep(pause)
            pause = min(LONGEST_S, pause * 1.2)
        return []

    def _look_for(self, keys: Sequence[str], tag: str, absent: Sequence[int]) -> None:
        """Raise PeerFailed after a failure, Recovery where that was asked for and an absent rank did not come before.

        And GroupError where an absent rank is at a place that this one passed by.
        """
        self._look_for_failure(absent)
        if self.asked() is not None:
            # Whoever asked has posted all that it ever will in this generation: a round that is whole by now counts, so
            # that no rank gives up a round which another one has seen whole.
            if not self._store.check(list(keys)):
                raise Recovery
            return
        for rank in absent:
            key = f"{self.generation}/at/{rank}"
            going = tuple(json.loads(self._store.get(key))) if self._store.check([key]) else (-1, "")
            if going[0] == self._round - 1 and going != self._going:
                raise different_places({self._rank: f"{tag!r}{calling_line()}", rank: repr(going[1])})

    def _look_for_failure(self, absent: Sequence[int]) -> None:
        if message := self.failure():
            raise PeerFailed(message, "see that rank's log")

    def report_failure(self, message: str) -> None:
        """Post the message unless another rank was first."""
        self._store.compare_set("failed", "", message)

    def failure(self) -> str | None:
        """The first failure that was posted."""
        if not self._store.check(["failed"]):
            return None
        return self._store.get("failed").decode()

    def ask_to_recover(self, reason: Mapping[str, Any]) -> None:
        """Ask all ranks to leave what they are at and meet in the next generation; the first one's reason stays."""
        self._store.compare_set(self._asked_key, "", json.dumps(reason))

    def asked(self) -> dict[str, Any] | None:
        """The reason for which a rank has asked for that in this generation; None where nobody has."""
        if not self._store.check([self._asked_key]):
            return None
        reason: dict[str, Any] = json.loads(self._store.get(self._asked_key))
        return reason

    @property
    def _asked_key(self) -> str:
        return f"{self.generation}/asked"

    def next_generation(self) -> None:
        """Begin rounds anew; all ranks come here after one of them has asked."""
        self.generation += 1
        self._round, self._going = 0, (-1, "")

    def watcher(self) -> StoreChannel:
        """The same channel on a connection of its own, for a thread that only looks."""
        watcher = StoreChannel(twin_of(self._store), self._rank, self._size, self._timeout_s)
        watcher.generation = self.generation
        return watcher


def twin_of(store: dist.Store) -> dist.Store:
    """The same store on a connection of its own: torch lets one thread at a time talk over each."""
    twin: dist.Store = store.clone()  # type: ignore[attr-defined]  # not in torch's stubs
    return twin


def ignore(absent: Sequence[int]) -> None:
    """Wait on, whoever is absent."""


def different_places(places: Mapping[int, str]) -> GroupError:
    """The error of ranks that cannot meet; `places` by rank."""
    listed = "; ".join(f"rank {rank} at {place}" for rank, place in sorted(places.items()))
    return GroupError(
        f"the ranks are at different places: {listed}",
        "something that all ranks must call is called on some of them only (a rank-0 guard?)",
    )
