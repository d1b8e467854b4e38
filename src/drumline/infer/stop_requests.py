"""Requests to stop that reach a worker of a prediction: the file requests/stop, and the caller's own means."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from drumline.predictions import PredictionDir
from drumline.rundir import STOP_REQUEST

ASKED = "a request to stop"

LOOK_S = 0.5
"""Between two looks for the file."""


class StopRequest:
    """Whether the run was asked to stop; once so, for good. May be asked from any thread."""

    def __init__(
        self, directory: PredictionDir, stop: Callable[[], bool] = lambda: False, *, heeds_old: bool = False
    ) -> None:
        """stop: asked each time. heeds_old: whether a file counts that was there before; a launcher removes those.

        The run directory must exist. Raises OSError where it cannot be written to.
        """
        self._file = directory.run.requests / STOP_REQUEST
        self._stop = stop
        self._since_ns = 0
        if not heeds_old:
            # Of a file, since the clock of its server may be another than ours.
            with tempfile.TemporaryFile(dir=directory.path) as file:
                self._since_ns = os.fstat(file.fileno()).st_mtime_ns
        self._looked_at = -LOOK_S
        self._is_so = False

    def __call__(self) -> bool:
        """Look, at the file not more often than LOOK_S."""
        if not self._is_so:
            self._is_so = self._stop()
            if not self._is_so and time.monotonic() - self._looked_at >= LOOK_S:
                self._looked_at = time.monotonic()
                self._is_so = self._is_asked()
        return self._is_so

    def _is_asked(self) -> bool:
        try:
            return self._file.stat().st_mtime_ns >= self._since_ns
        except FileNotFoundError:
            return False
