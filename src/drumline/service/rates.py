"""How often a key or an address may ask."""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

from drumline.config.service import AccessConfig
from drumline.errors import MissingExtra, RateLimited

TIDY_S = 60.0
"""Between two looks for callers who have not asked for a while, who are forgotten."""


class Rates:
    """Counts requests of the last minute, in memory, a few numbers a caller."""

    def __init__(self, config: AccessConfig) -> None:
        """Raises MissingExtra without the package `limits`."""
        package = _limits()
        self._storage = package.storage.MemoryStorage()
        self._storage.timer.join()
        # It would start a thread at nearly every request to look for what can be forgotten; see _tidy.
        self._storage.timer = _NeverDue()
        self._tidied = time.monotonic()
        self._limiter = package.strategies.SlidingWindowCounterRateLimiter(self._storage)
        self._reading = package.RateLimitItemPerMinute(config.requests_per_minute)
        self._changes = package.RateLimitItemPerMinute(config.changes_per_minute)

    def count(self, caller: str, *, is_change: bool) -> None:
        """Count one request. Raises RateLimited where it is one too many."""
        self._tidy()
        item, kind = (self._changes, "changes") if is_change else (self._reading, "reading")
        if self._limiter.hit(item, kind, caller):
            return
        wait_s = max(1.0, self._limiter.get_window_stats(item, kind, caller).reset_time - time.time())
        raise RateLimited(
            f"more than {item.amount} requests of this kind a minute", f"wait {wait_s:.0f} s, or ask less often", wait_s
        )

    @property
    def num_callers(self) -> int:
        """Numbers that are kept, two for each caller who asked lately."""
        return len(self._storage.expirations)

    def _tidy(self) -> None:
        now = time.monotonic()
        if now - self._tidied > TIDY_S:
            self._tidied = now
            for name in list(self._storage.expirations):
                self._storage.get(name)  # forgets what has expired


class _NeverDue(threading.Timer):
    """Stands where the storage keeps its timer."""

    def __init__(self) -> None:
        super().__init__(0.0, lambda: None)

    def is_alive(self) -> bool:
        """As if another were on its way."""
        return True


def _limits() -> Any:
    try:
        importlib.import_module("limits.strategies")
        importlib.import_module("limits.storage")
        return importlib.import_module("limits")
    except ImportError:
        raise MissingExtra("limits", "serve") from None
