"""What keeps an attempt of a job: `python -m drumline.jobs.keeper JOB_FOLDER ATTEMPT`.

It runs the attempt's commands one after the other and says in a file how they ended. It needs nobody meanwhile: the
service that started it may be killed, and the next one finds all of it in the job's folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from drumline.jobs.adoption import MARK, began_of, end_marked, machine_id
from drumline.jobs.keeper_files import ROOM_BYTES, AttemptFiles, Claim, Command, EndRecord, end_of, error_in
from drumline.jobs.states import INTERRUPTED
from drumline.launcher.failures import FIX_MARK, first_failure
from drumline.launcher.processes import die_with_parent
from drumline.rundir import read_json, remove_unfinished

_TRIES_S = 60.0
"""How long a full disk is given to have room for the end again."""
MOST_CHARACTERS = 4000
"""Of a message and of a fix: they are kept with the job, and shown in lists."""
_TRACEBACK = "Traceback (most recent call last):"
_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)


def main(arguments: list[str]) -> int:
    """Keep one attempt; nothing where somebody else has it."""
    os.umask(0o077)  # texts are in what the commands write
    files = AttemptFiles(Path(arguments[0]), int(arguments[1]))
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.handle)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    commands = files.read_request()
    held = files.hold()
    if held is None:
        return 0
    pid = os.getpid()
    began = began_of(pid)
    log_bytes = files.log.stat().st_size if files.log.exists() else 0
    if not files.take(Claim(machine_id(), time.time(), pid, began, log_bytes)):
        return 0
    with suppress(OSError):  # on a full disk there is none to be kept
        files.room.write_bytes(bytes(ROOM_BYTES))
    end = EndRecord(0, None, "train")
    for command in commands:
        if command.makes is None or not Path(command.makes).exists():
            end = _run(command, files, stop, log_bytes)
        if end.exit_status != 0:
            break
    _write(files, end)
    held.close()
    return 0


@dataclass
class _Stop:
    """Whether the attempt was asked to stop. It is passed on once: a second signal ends a run without saving."""

    asked: bool = False
    passed_on: bool = False
    child: subprocess.Popen[bytes] | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.pass_on()

    def pass_on(self) -> None:
        if self.asked and not self.passed_on and self.child is not None:
            self.passed_on = True
            os.kill(self.child.pid, signal.SIGTERM)  # not waited for yet, so that the number is its own


def _run(command: Command, files: AttemptFiles, stop: _Stop, log_bytes: int) -> EndRecord:
    """Run one command to its end; nothing that it started is left then."""
    if stop.asked:
        return EndRecord(INTERRUPTED, None, command.step, "stopped before it began")
    began = time.time()
    try:
        child = subprocess.Popen(
            command.words,
            stdin=subprocess.DEVNULL,
            process_group=0,
            preexec_fn=partial(die_with_parent, signal.SIGKILL, os.getpid()),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return EndRecord(1, None, command.step, f"{command.words[0]} could not be started: {error}", code="launch")
    stop.child = child
    stop.pass_on()  # it was asked while the child was being started
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with suppress(ProcessLookupError):  # the number is the group's until the child is waited for
        os.killpg(child.pid, signal.SIGKILL)
    stop.child = None
    status = child.wait()
    end_marked(os.environ.get(MARK, ""))
    if command.makes is not None:
        remove_unfinished(Path(command.makes))  # where it was cut off
    if stop.asked and status in (*_BY_SIGTERM, INTERRUPTED):
        return EndRecord(INTERRUPTED, None, command.step)  # until it trains it has nothing to save, and ends at once
    if status == 0:
        return EndRecord(0, None, command.step)
    problem, fix, code = _failure(files, began, log_bytes)
    number = -status if status < 0 else None
    return EndRecord(None if number else status, number, command.step, problem, fix, code)


def _failure(files: AttemptFiles, began: float, log_bytes: int) -> tuple[str, str, str | None]:
    """Problem, fix and code of what ended the commands of this attempt, as far as they told."""
    told, text = None, ""
    with suppress(OSError):
        text = end_of(files.log, log_bytes)
        told = error_in(text)
    code = None
    with suppress(OSError, ValueError, TypeError):  # half of what was there is enough
        found = (path for who in ("rank", "worker") for path in files.run.logs.glob(f"{who}_*.error.json"))
        mine = (path for path in found if path.stat().st_mtime >= began - 1)
        failure = first_failure(mine)
        code = None if failure is None else failure.code
        end: Mapping[str, object] = read_json(files.run.exit)
        if told is None and files.run.exit.stat().st_mtime >= began - 1:
            problem, _, fix = str(end.get("message") or "").partition(FIX_MARK)
            told = problem, fix
    if told is None and _TRACEBACK in text:  # of a command that crashed the last line says why
        told = text.rstrip().rpartition("\n")[2], ""
    return (*(told or ("", "")), code)


def _write(files: AttemptFiles, end: EndRecord) -> None:
    limit = time.monotonic() + _TRIES_S
    message, fix = end.message[:MOST_CHARACTERS], end.fix[:MOST_CHARACTERS]
    record = replace(end, message=message, fix=fix, time=time.time())
    while True:
        try:
            files.write_end(record)
            return
        except FileNotFoundError:  # the folder was removed: there is nobody to tell
            return
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(1.0)


if __name__ == "__main__":
    # In its own group, and in its own session: neither a terminal nor the service's end reaches it.
    sys.exit(main(sys.argv[1:]))
