"""What asks a run from outside to stop, save or restart: signals, files in its directory, the end of its time."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.launcher.notices import Notice
from drumline.rundir import RESTART_REQUEST, SAVE_REQUEST, STOP_REQUEST, read_json

if TYPE_CHECKING:
    from drumline.engine.run import Run

logger = logging.getLogger("drumline")

LOOK_S = 1.0
"""Between two looks for request files: the directory may lie on a slow file system."""
MARGIN_S = 120.0
"""Before the end of a SLURM job, in which the last update and the save must have their time."""
MARGIN_SHARE = 0.1
"""Most of what the job had left at the run's start that the margin takes: else a short job would not train."""
SLURM_END = "SLURM_JOB_END_TIME"
"""SLURM's variable with the end of the job, in seconds since 1970 (man sbatch, OUTPUT ENVIRONMENT VARIABLES)."""


class Outside:
    """Looks for what this rank is asked for; `look` and `save` are cheap enough for every batch.

    notice: where stop signals are noted. requests: the folder of request files, on a rank that reads them; restarts:
    whether it heeds those for a restart alone. limits: by reason, seconds from now.
    """

    def __init__(
        self,
        notice: Notice | None = None,
        requests: Path | None = None,
        limits: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        restarts: bool = False,
    ) -> None:
        self.notice = notice
        self._requests = requests
        self._restarts_alone = restarts
        self._clock = clock
        self._ends = {reason: clock() + left_s for reason, left_s in (limits or {}).items()}
        self._looked = clock() - LOOK_S
        self._found: str | None = None
        self._stop = self._save = False
        self._restart: str | None = None

    def look(self) -> str | None:
        """Why this rank should stop; None: go on. What was found once stays."""
        if self._found is None:
            found = self._by_signal() or self._by_time() or self._by_request()
            if found is not None:
                self.stop_is_agreed(found)
        return self._found

    def stop_is_agreed(self, reason: str) -> None:
        """Say once on each rank that the run ends, also where another rank was asked first."""
        if self._found is None:
            self._found = reason
            logger.warning("%s: the run is saved and ends (a second SIGINT or SIGTERM: at once)", reason)

    def wants_restart(self) -> str | None:
        """Why the run should go on in new processes; None: nobody asks. What was found once stays."""
        self._read_requests()
        return self._restart

    def wants_save(self) -> bool:
        """Whether a save was asked for, until `save_is_agreed`."""
        self._read_requests()
        return self._save

    def save_is_agreed(self) -> None:
        """The other ranks know of it."""
        self._save = False

    def begin(self, notice: Notice) -> None:
        """Look at these signals from now on; what ended an earlier call of `fit`, in a notebook, is forgotten."""
        self.notice, self._found, self._stop, self._restart = notice, None, False, None

    def _by_signal(self) -> str | None:
        if self.notice is None or self.notice.first is None:
            return None
        return f"interrupted by {self.notice.first.name}"

    def _by_time(self) -> str | None:
        now = self._clock()
        return next((reason for reason, end in self._ends.items() if now >= end), None)

    def _by_request(self) -> str | None:
        self._read_requests()
        return "asked to stop by a request file" if self._stop else None

    def _read_requests(self) -> None:
        """Take in the request files, at most every LOOK_S."""
        if self._requests is None or self._clock() < self._looked + LOOK_S:
            return
        self._looked = self._clock()
        if not self._restarts_alone:
            self._save |= taken(self._requests / SAVE_REQUEST)
            self._stop |= taken(self._requests / STOP_REQUEST)
        self._restart = self._restart or restart_reason(self._requests / RESTART_REQUEST)


def outside_of(run: Run) -> Outside:
    """What asks this run, which begins now; rank 0 reads the requests.

    Those for a restart are read on each machine: its recorder writes them there, and folders may be each machine's own.
    """
    requests = run.directory.requests if run.groups.world.local_rank == 0 else None
    if requests is not None:
        requests.mkdir(mode=0o700, exist_ok=True)
    return Outside(requests=requests, limits=limits(run.config.train.max_time_s), restarts=not run.is_rank_zero)


def taken(request: Path) -> bool:
    """Whether there is such a request; it is removed, so that it is heeded once."""
    try:
        request.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        if not request.exists():
            return False
        logger.warning("the request %s is heeded, but cannot be removed: %s", request, error)
    return True


def restart_reason(request: Path) -> str | None:
    """Why a restart is asked for, by a file that may say it as JSON; None where there is no such request."""
    if not request.exists():
        return None
    try:
        reason = str(read_json(request)["reason"])
    except (OSError, ValueError, TypeError, KeyError):
        reason = "asked to start again by a request file"
    if not taken(request):
        return None
    logger.warning("%s: the run is saved and ends; started again, it goes on", reason)
    return reason


def limits(
    max_time_s: float | None, environ: Mapping[str, str] = os.environ, now: float | None = None
) -> dict[str, float]:
    """By reason, the seconds that a run which begins now has: train.max_time_s, and what is left of a SLURM job.

    An end that is past, as in a shell that outlived its job, or that is no number, says nothing.
    """
    found = {} if max_time_s is None else {f"train.max_time_s={max_time_s:g} is over": max_time_s}
    end = environ.get(SLURM_END, "")
    left_s = float(end) - (time.time() if now is None else now) if end.isdecimal() else 0.0
    if left_s > 0:
        found["the SLURM job is about to end"] = left_s - min(MARGIN_S, MARGIN_SHARE * left_s)
    return found
