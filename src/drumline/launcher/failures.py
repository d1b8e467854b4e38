"""Failures of ranks: written by the one that fails, read by the launcher, which must name the first."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from drumline.errors import DrumlineError, HangError, LaunchError, PeerFailed
from drumline.launcher.spec import LaunchSpec
from drumline.rundir import read_json, write_json

FIX_MARK = "\n  fix: "
"""What stands between problem and fix in the text of a DrumlineError."""

PLACE_MARK = "in the run: "
"""Beginning of an exception's note that says where the run stood, for the message."""
LAST_SEEN_MARK = "last seen: rank "
"""Beginning of a note that says where another rank was, of which nothing more is known."""

_CHILD = "drumline.launcher.child"
"""The module that each of our launcher's workers begins in, with the file of its LaunchSpec as first argument."""

_PEER_GONE = (
    "connection closed by peer",  # gloo
    "connection reset by peer",  # gloo
    "connection closed by remote peer",  # nccl, over sockets
    "remote process exited or there was a network error",  # nccl, ncclRemoteError
    "did the remote server shutdown or crash",  # torch's TCPStore
)

_SIGNAL_HINTS = {
    signal.SIGKILL: "out of memory killer?",
    signal.SIGBUS: "/dev/shm full? see drumline doctor",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up; see the end of its log",
}


_LIBRARIES = (
    "<frozen",
    f"{Path(__file__).parent.parent}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")),
)
"""Beginnings of file names whose lines are not the user's: drumline, torch and all else that was installed."""


@dataclass(frozen=True)
class Failure:
    """Why a rank, or with rank None the launcher itself, did not end well."""

    rank: int | None
    time: float
    """Seconds since 1970."""
    code: str
    """A DrumlineError's code, "error" for any other exception, "exit" or "signal" for a process that left no record."""
    exit_status: int
    message: str
    traceback: str | None = None
    last_seen: dict[str, str] = field(default_factory=dict)
    """Where other ranks were, by rank, that are gone without a word."""

    @property
    def is_consequence(self) -> bool:
        """Whether it only tells that another rank is gone."""
        return self.code == PeerFailed.code

    def to_error(self, log: Path) -> LaunchError:
        """The exception for it, code and exit status kept; `log` is where to read on if the failure names no fix."""
        problem, _, fix = self.message.partition(FIX_MARK)
        who = "the launcher" if self.rank is None else f"rank {self.rank}"
        # A hang is nobody's failure that tells of it.
        told = f"the run hangs: {problem}" if self.code == HangError.code else f"{who} failed: {problem}"
        error = LaunchError(told, fix or f"see {log}")
        error.code, error.exit_status = self.code, self.exit_status
        return error


def place_of_record() -> Path | None:
    """Where this process leaves its failure for the launcher of ours that has started it; None where another one has.

    For a thread that has to end the process while the main one, which would record it, is stuck.
    """
    arguments = sys.orig_argv
    if _CHILD not in arguments:
        return None
    spec, _ = LaunchSpec.read(Path(arguments[arguments.index(_CHILD) + 1]))
    return spec.run.error_of(int(os.environ["RANK"]))


def record_failure(path: Path, rank: int, error: BaseException) -> None:
    """Write what ended this rank, atomically. Raises OSError where the file cannot be written."""
    write_json(path, asdict(failure_of(rank, error)))


def failure_of(rank: int | None, error: BaseException) -> Failure:
    """Describe an exception; for one that is no DrumlineError the message names type and place."""
    code, exit_status, text = "error", 1, None
    if isinstance(error, DrumlineError):
        code, exit_status, message = error.code, error.exit_status, str(error)
    elif isinstance(error, SystemExit):
        code, exit_status = "exit", error.code if isinstance(error.code, int) and 0 < error.code < 256 else 1
        message = f"exit with status {error.code}" if isinstance(error.code, int) else str(error.code)
        message += _place(error)
    else:
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__qualname__}: {error}{_place(error)}"
        message += "".join(f", {place}" for place in _notes(error, PLACE_MARK)[:1])
    if _tells_of_a_peer(error):
        code = PeerFailed.code
    seen = dict(note.split(": ", 1) for note in _notes(error, LAST_SEEN_MARK))
    return Failure(rank, time.time(), code, exit_status, message, text, seen)


def _notes(error: BaseException | None, mark: str) -> list[str]:
    """What the notes of the error that begin so go on with, and those of what it was raised from."""
    found: list[str] = []
    while error is not None:
        notes = getattr(error, "__notes__", ())
        found += [note.removeprefix(mark) for note in notes if note.startswith(mark)]
        error = error.__cause__
    return found


def failure_of_exit(rank: int | None, exit_code: int, when: float) -> Failure:
    """Describe a process that ended without a record: exit_code as subprocess gives it, negative for a signal."""
    if exit_code >= 0:
        return Failure(rank, when, "exit", min(exit_code, 255) or 1, f"exit with status {exit_code}")
    try:
        number = signal.Signals(-exit_code)
    except ValueError:  # a real-time signal has no name
        return Failure(rank, when, "signal", 1, f"killed by signal {-exit_code}")
    hint = f" ({_SIGNAL_HINTS[number]})" if number in _SIGNAL_HINTS else ""
    return Failure(rank, when, "signal", 1, f"killed by signal {-exit_code}, {number.name}{hint}")


def first_failure(paths: Iterable[Path]) -> Failure | None:
    """The first of the failures in the ranks' error files; absent files are passed over, None if all are absent."""
    return earliest(Failure(**read_json(path)) for path in paths if path.exists())


def earliest(failures: Iterable[Failure]) -> Failure | None:
    """The first failure by time; one that only tells of a peer's end never wins over one that does not.

    A hang comes before all: what has ended after its report was ended because of it. Where others have seen the rank
    last is added to the failure of one that left no word itself.
    """
    known = list(failures)
    order = lambda each: (each.is_consequence, each.code != HangError.code, each.time)  # noqa: E731
    first = min(known, key=order, default=None)
    if first is None:
        return None
    seen = {rank: place for each in known for rank, place in each.last_seen.items()}
    place = seen.get(str(first.rank))
    if first.code in ("signal", "exit") and first.traceback is None and place is not None:
        first = replace(first, message=f"{first.message}; last seen: {place}")
    return replace(first, last_seen=seen)


def _tells_of_a_peer(error: BaseException | None) -> bool:
    """Whether this error, or what it was explicitly raised from, is what a rank sees when another is gone.

    Only RuntimeError counts, which gloo, NCCL and the store raise; a data source's ConnectionError is the rank's own.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _PEER_GONE):
            return True
        error = error.__cause__
    return False


def is_users(file: str) -> bool:
    """Whether code in a file of this name is the user's: not drumline's, torch's, or anything else's installed."""
    return not file.startswith(_LIBRARIES)


def _place(error: BaseException) -> str:
    """' (file:line)' of the innermost frame in code of the user's, else of the innermost frame; '' without frames."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    own = [frame for frame in frames if is_users(frame.filename)]
    innermost = (own or frames)[-1]
    return f" ({innermost.filename}:{innermost.lineno})"


def calling_line() -> str:
    """' (file:line)' of the innermost frame of the user's on this thread's stack; '' where there is none."""
    own = [frame for frame in traceback.extract_stack() if is_users(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
