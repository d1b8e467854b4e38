"""Agreement between ranks over a key-value store: never over the group that may be stuck."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from drumline.errors import GroupError, PeerFailed
from drumline.launcher.failures import calling_line

SLICE_S = 1.0
"""Length of one wait; between two the failure key is looked at."""


class SideChannel(Protocol):
    """Small messages between all ranks, in rounds that every rank takes part in."""

    def exchange(self, tag: str, payload: Any = None) -> list[Any]:
        """Give a JSON value, get every rank's, by rank. All ranks must come with the same tag."""
        ...

    def announce(self, place: str) -> None:
        """Say, without waiting, where this rank goes before the next round: it may get stuck there."""
        ...

    def report_failure(self, message: str) -> None:
        """Tell the others that this rank fails, so that they end at once and can say why."""
        ...

    def failure(self) -> str | None:
        """The first failure that any rank reported."""
        ...


class Alone:
    """The side channel of a world of one."""

    def exchange(self, tag: str, payload: Any = None) -> list[Any]:
        """Give back the one payload."""
        return [payload]

    def announce(self, place: str) -> None:
        """Nobody else is there."""

    def report_failure(self, message: str) -> None:
        """Nobody else is there."""

    def failure(self) -> str | None:
        """Nobody else can have failed."""
        return None


class StoreChannel:
    """The side channel over a torch store."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s
        self._round = 0
        self._announced = -1
        """Round before which this rank has said where it goes."""
        self._reads_many: bool = store.has_extended_api()  # type: ignore[attr-defined]  # a file store cannot

    def exchange(self, tag: str, payload: Any = None) -> list[Any]:
        """Give a JSON value, get every rank's, by rank.

        Raises GroupError naming the ranks that did not come within the limit, or that came to another place (a
        collective under a rank-0 guard), and PeerFailed where another rank has reported a failure.
        """
        self._round += 1
        keys = [self._key(self._round, rank) for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps([tag, payload]))
        self._wait(keys, tag)
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
        keys = [f"where/{self._round}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], calling_line())
        with contextlib.suppress(dist.DistStoreError):  # a rank that is gone by now: its line stays unknown
            self._store.wait(keys, timedelta(seconds=SLICE_S))
        lines = [self._store.get(key).decode() if self._store.check([key]) else "" for key in keys]
        return list(zip(tags, lines, strict=True))

    def announce(self, place: str) -> None:
        """Say, without waiting, where this rank goes before the next round: it may get stuck there.

        A rank that waits elsewhere for that round then knows that this one will never come.
        """
        self._announced = self._round
        self._store.set(f"at/{self._rank}", json.dumps([self._round, place]))

    def _key(self, round_number: int, rank: int) -> str:
        return f"round/{round_number}/{rank}"

    def _wait(self, keys: Sequence[str], tag: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._store.wait(list(keys), timedelta(seconds=min(SLICE_S, self._timeout_s)))
                return
            except dist.DistStoreError:
                if message := self.failure():
                    raise PeerFailed(message, "see that rank's log") from None
                absent = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
                self._look_for(absent, tag)
                if not absent or time.monotonic() < deadline:
                    continue
            raise GroupError(
                f"rank {self._rank} waited {self._timeout_s:g} s at {tag!r} for rank {', '.join(absent)}",
                "start every rank, see what the absent ones were doing, or raise parallel.timeout_s",
            )

    def _look_for(self, absent: Sequence[str], tag: str) -> None:
        """Raise GroupError where an absent rank has gone to a place that this one has passed by."""
        if self._announced == self._round - 1:
            return
        for rank in absent:
            key = f"at/{rank}"
            number, place = json.loads(self._store.get(key)) if self._store.check([key]) else (-1, "")
            if number == self._round - 1:
                raise different_places({self._rank: f"{tag!r}{calling_line()}", int(rank): repr(place)}) from None

    def report_failure(self, message: str) -> None:
        """Post the message unless another rank was first."""
        self._store.compare_set("failed", "", message)

    def failure(self) -> str | None:
        """The first failure that was posted."""
        if not self._store.check(["failed"]):
            return None
        return self._store.get("failed").decode()


def different_places(places: Mapping[int, str]) -> GroupError:
    """The error of ranks that cannot meet; `places` by rank."""
    listed = "; ".join(f"rank {rank} at {place}" for rank, place in sorted(places.items()))
    return GroupError(
        f"the ranks are at different places: {listed}",
        "something that all ranks must call is called on some of them only (a rank-0 guard?)",
    )
