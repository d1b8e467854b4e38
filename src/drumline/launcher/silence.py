"""Which workers are frozen, or stuck at one batch: by the files that they write while they work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.predictions import last_line

LOOK_S = 1.0
MOST_BETWEEN_S = 5.0
"""What the time between two looks counts at most: whoever looks may have been frozen with those it looks at."""
BEAT = "beat"
"""Key of a line that only a working main thread renews. Who does not write it is not watched."""


@dataclass
class _Seen:
    size: tuple[int, int] = (-1, -1)
    """And time of change, which are only compared with themselves."""
    written: float = 0.0
    beat: float | None = None
    beaten: float = 0.0


class Silence:
    """Looks at the workers' files from time to time; only its own clock counts, not what stands in the files."""

    def __init__(self, silence_s: float, hang_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """silence_s: how long a file may stay as it is; hang_timeout_s: how long its beat may."""
        self._silence_s = silence_s
        self._hang_timeout_s = hang_timeout_s
        self._clock = clock
        self._looked = clock()
        self._watched = 0.0
        self._seen: dict[Path, _Seen] = {}

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return self._clock() - self._looked >= LOOK_S

    def look(self, files: Mapping[int, Sequence[Path]]) -> dict[int, str]:
        """Which of these workers are stuck, and why one says so. Files that are absent say nothing."""
        now = self._clock()
        self._watched += min(now - self._looked, MOST_BETWEEN_S)
        self._looked = now
        reasons = {number: self._reason(file) for number, those in files.items() for file in those}
        return {number: reason for number, reason in reasons.items() if reason is not None}

    def _reason(self, file: Path) -> str | None:
        now = self._watched
        seen = self._seen.setdefault(file, _Seen(written=now, beaten=now))
        try:
            found = file.stat()
            if (found.st_size, found.st_mtime_ns) != seen.size:
                seen.size, seen.written = (found.st_size, found.st_mtime_ns), now
                beat = last_line(file).get(BEAT)
                if beat != seen.beat:
                    seen.beat, seen.beaten = beat, now
        except OSError:  # the file or its disk is gone, which the worker itself finds out
            return None
        if seen.beat is None:
            return None
        if now - seen.written > self._silence_s:
            return f"it has said nothing for {now - seen.written:.0f} s, as if it were stopped or frozen"
        if now - seen.beaten > self._hang_timeout_s:
            return f"it has been at one batch for {now - seen.beaten:.0f} s (hang_timeout_s)"
        return None
