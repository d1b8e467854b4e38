"""What every worker process starts as: `python -m drumline.launcher.child LAUNCH_JSON AGENT_PID`.

It binds itself to the agent's life, sends the output of all ranks but 0 to their logs, runs the script, module or
function, and leaves a record if that fails.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from drumline.errors import Interrupted
from drumline.launcher.calls import result_file, run_call
from drumline.launcher.failures import record_failure
from drumline.launcher.notices import noting
from drumline.launcher.processes import die_with_parent, end_with_launcher
from drumline.launcher.spec import LaunchSpec, stopped_file
from drumline.rundir import write_json

TEARDOWN_LIMIT_S = 3.0
"""After a failure: how long threads, exit handlers and destructors may take before the kernel ends the process."""
_INTERRUPTED = 128 + signal.SIGINT
_TRAINS = "drumline.worker"
"""The module that trains a recipe: it heeds signals once it trains, also those that come while it imports and reads."""


def main(arguments: list[str]) -> None:
    """Run this rank's part; ends the process with a status other than 0 if it fails."""
    spec_path, agent = Path(arguments[0]), int(arguments[1])
    die_with_parent(signal.SIGKILL, agent)
    spec, _ = LaunchSpec.read(spec_path)
    end_with_launcher(spec, agent)
    rank = int(os.environ["RANK"])
    log = spec.run.log_of(rank)
    if rank != 0:
        _redirect(log, (1, 2))
        _redirect(Path(os.devnull), (0,))
    try:
        with noting(spec.stop_signals if spec.target == _TRAINS else ()):
            run_target(spec, rank)
    except Interrupted as stop:
        # To torch elastic any other status is a failure, on which the other ranks have but seconds to end.
        write_json(stopped_file(spec.run, rank), {"time": time.time(), "reason": stop.reason})
        _leave(spec)
    except KeyboardInterrupt:
        # Everybody who pressed Ctrl-C knows; a traceback a rank would bury what matters.
        sys.exit(_INTERRUPTED)
    except SystemExit as error:
        if error.code not in (None, 0):
            _record(spec, rank, error)
        raise
    except BaseException as error:
        if rank == 0:
            # The launcher shows the first failing rank's traceback last; rank 0's own must not come after it or twice.
            _redirect(log, (2,))
        error.__traceback__ = _own_part(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(_record(spec, rank, error))
    _leave(spec)


def _leave(spec: LaunchSpec) -> NoReturn:
    """End with status 0. Our own worker has closed what it had; to take torch apart as well would cost a second."""
    if spec.target == _TRAINS:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)
    sys.exit(0)


def run_target(spec: LaunchSpec, rank: int) -> None:
    """Run the script or module as `python` would run it, or the function, whose result is kept for the launcher."""
    if spec.kind == "function":
        run_call(Path(spec.target), result_file(spec.run, rank))
        return
    sys.argv = [spec.target, *spec.args]
    # Workers start with -P, so that nothing in the working directory hides a library before the target is known.
    safe = bool(os.environ.get("PYTHONSAFEPATH"))
    if spec.kind == "module":
        sys.path[:0] = [] if safe else [str(Path.cwd())]
        runpy.run_module(spec.target, run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [] if safe else [str(Path(spec.target).resolve().parent)]
        runpy.run_path(spec.target, run_name="__main__")


def _record(spec: LaunchSpec, rank: int, error: BaseException) -> int:
    """Write the error file and limit the time that is left to this process; returns the exit status."""
    try:
        record_failure(spec.run.error_of(rank), rank, error)
    except OSError as problem:
        print(f"drumline: cannot record the failure of rank {rank}: {problem}", file=sys.stderr)  # noqa: T201
    # The alarm's default action needs neither Python nor a willing library: a thread or a communicator that
    # never ends must not keep the other ranks waiting for this one's exit.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, TEARDOWN_LIMIT_S)
    status = getattr(error, "exit_status", 1)
    return status if isinstance(status, int) else 1


def _redirect(path: Path, numbers: tuple[int, ...]) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    for number in numbers:
        os.dup2(descriptor, number)
    os.close(descriptor)


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames by which this module came to the target."""
    ours = {__file__, runpy.__file__}
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in ours and not name.startswith("<frozen"):
            break
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(sys.argv[1:])
