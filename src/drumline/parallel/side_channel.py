"""Agreement between ranks over a key-value store: never over the group that may be stuck."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from drumline.errors import GroupError, PeerFailed

SLICE_S = 1.0
"""Length of one wait; between two the failure key is looked at."""


class SideChannel(Protocol):
    """Small messages between all ranks, in rounds that every rank takes part in."""

    def exchange(self, tag: str, payload: Any = None) -> list[Any]:
        """Give a JSON value, get every rank's, by rank. All ranks must come with the same tag."""
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
            places = "; ".join(f"rank {rank} at {name!r}" for rank, name in enumerate(tags))
            raise GroupError(
                f"the ranks are at different places: {places}",
                "something that all ranks must call is called on some of them only (a rank-0 guard?)",
            )
        return [answer[1] for answer in answers]

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
                if time.monotonic() < deadline:
                    continue
            absent = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
            raise GroupError(
                f"rank {self._rank} waited {self._timeout_s:g} s at {tag!r} for rank {', '.join(absent)}",
                "start every rank, see what the absent ones were doing, or raise parallel.timeout_s",
            )

    def report_failure(self, message: str) -> None:
        """Post the message unless another rank was first."""
        self._store.compare_set("failed", "", message)

    def failure(self) -> str | None:
        """The first failure that was posted."""
        if not self._store.check(["failed"]):
            return None
        return self._store.get("failed").decode()
