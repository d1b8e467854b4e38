"""What every independent worker starts as: `python -m drumline.launcher.independent_child START_JSON MODULE ARGS...`.

It binds itself to its launcher's life, runs the module as `python -m` would, and leaves a record if that fails.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import os
import runpy
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from drumline.errors import DrumlineError
from drumline.launcher.failures import record_failure
from drumline.launcher.notices import noting
from drumline.launcher.processes import die_with_parent

TEARDOWN_LIMIT_S = 3.0
"""After a failure: how long threads, exit handlers and destructors may take before the kernel ends the process."""
STOP = ("SIGTERM", "SIGINT")
"""What asks a worker to stop; while it imports and loads they are noted, and heeded once it works."""
DISK_FULL = 5
"""Exit status of a worker that could not write."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

logger = logging.getLogger("drumline")


@dataclass(frozen=True)
class Start:
    """What a launcher tells its worker."""

    launcher: int
    """Its pid."""
    pipe: int
    """Descriptor of which only the launcher has the other end: it is at its end once the launcher is."""
    number: int
    """The worker's place on the machine."""
    error_file: str
    """Where its failure goes."""
    first: bool = True
    """Whether no worker of this launcher had got going before it was started."""

    def to_text(self) -> str:
        """As the command line takes it."""
        return json.dumps(asdict(self))


def main(arguments: list[str]) -> NoReturn:
    """Run the module; ends the process with its exit status, that of its error, or 1."""
    start = Start(**json.loads(arguments[0]))
    die_with_parent(signal.SIGKILL, start.launcher)
    threading.Thread(target=_end_with_pipe, args=(start.pipe,), name="launcher's end", daemon=True).start()
    sys.argv = arguments[1:]
    try:
        with noting(STOP):
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if status not in (0, 3):
            _record(start, end)
        _leave(status)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        _record(start, error)
        _leave(status_of(error))
    _leave(0)


def status_of(error: BaseException) -> int:
    """Pure: what a worker ends with that ends by this error."""
    if not isinstance(error, DrumlineError):
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno in NO_ROOM:
                return DISK_FULL
            cause = cause.__cause__
    status = getattr(error, "exit_status", 1)
    return status if isinstance(status, int) else 1


def _end_with_pipe(pipe: int) -> None:
    """Kill this process and what it has started once its launcher has ended, whatever system this is."""
    os.read(pipe, 1)  # nobody ever writes
    os.killpg(0, signal.SIGKILL)


def _leave(status: int) -> NoReturn:
    """End at once: all is written, to take torch apart would cost a second, and no thread may keep the process."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _record(start: Start, error: BaseException) -> None:
    """Write the error file and limit the time that is left to this process."""
    try:
        record_failure(Path(start.error_file), start.number, error)
    except OSError as problem:
        logger.error("the failure of worker %d cannot be recorded: %s", start.number, problem)
    # The alarm's default action needs neither Python nor a willing library, such as CUDA after an error.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, TEARDOWN_LIMIT_S)


if __name__ == "__main__":
    main(sys.argv[1:])
