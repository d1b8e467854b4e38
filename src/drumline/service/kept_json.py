"""JSON that is kept by all that it depends on, up to so many bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class KeptJson:
    """What was kept first goes first, where there is more than `most_bytes`. For all threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[Hashable, bytes] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """What is kept by this key, or else what `make` gives."""
        known = self._kept.get(key)
        if known is not None:
            return known
        made = make()
        with self._lock:
            self._num_bytes += len(made) - len(self._kept.pop(key, b""))
            self._kept[key] = made
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= len(self._kept.pop(next(iter(self._kept))))
        return made
