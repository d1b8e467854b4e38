"""The effects of jobs: starts the keepers of attempts, asks them to stop, ends them, and sees what became of them."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from drumline.errors import DrumlineError
from drumline.jobs.adoption import MARK, end_marked, is_alive, machine_id, mark_of, send
from drumline.jobs.commands import commands_of
from drumline.jobs.events import Began, End, Ended, Event, Gone, Missing, Refused, Restarted, Started
from drumline.jobs.keeper_files import AttemptFiles, Claim, Command, EndRecord, end_of, error_in, exported_of
from drumline.jobs.prediction_results import has_begun
from drumline.jobs.records import Job
from drumline.jobs.states import BAD_REQUEST, INTERRUPTED, START_S
from drumline.rundir import remove_unfinished

logger = logging.getLogger("drumline")

KEEPER = (sys.executable, "-P", "-m", "drumline.jobs.keeper")
SWEEP_S = 0.2
"""How long one look waits for processes that it killed; the next one goes on."""
LINGERS_S = 5.0
"""After which it is told that killed processes have not gone: a driver may keep them for ever."""
NOT_INHERITED = frozenset({"PGPASSWORD", "PGPASSFILE"})
"""Variables with which the store is opened, and no job is any business of."""
NOT_TO_BE_USED = "hardware.gpus names what is not to be used: "
"""Beginning of what a command says that finds its GPU sick or taken, see hardware.selection.require."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
LOW_BYTES = 16 << 20
"""Free room below which a disk counts as full: no job is started then."""
_LAST_BYTES = 16384

Commands = Callable[[Job, Path], Sequence[Command]]


class Executor:
    """Runs attempts of jobs below one folder. Everything may be done twice, by two services too, and counts once."""

    def __init__(
        self,
        data_dir: Path,
        *,
        memory_fraction: float = 1.0,
        commands: Commands | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """data_dir: of the service. commands: stands in for the commands of a job in tests. Raises OSError.

        clock: seconds since 1970. steady: seconds by a clock that nobody sets.
        """
        self.jobs_dir = data_dir.absolute() / "jobs"
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.jobs_dir.mkdir(mode=0o700, exist_ok=True)
        cache = data_dir.absolute() / "cache"
        self._commands = commands or (lambda job, folder: commands_of(job, folder, cache, memory_fraction))
        self._clock = clock
        self._steady = steady
        self._keepers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._refused: dict[tuple[str, int], Refused] = {}
        """Attempts whose refusal could not be written down."""
        self._lingering: dict[tuple[str, int], float] = {}
        """Attempts whose processes do not end, and since when."""
        self._unclaimed: dict[tuple[str, int], float] = {}
        """Attempts that no keeper has, and since when: as this process saw it, for the machine's clock may be set."""

    def folder(self, job_id: str) -> Path:
        """A job's own folder."""
        return self.jobs_dir / job_id

    def problem(self) -> str | None:
        """Why no job can be started at present, whichever it is; None: nothing is in the way."""
        try:
            free = shutil.disk_usage(self.jobs_dir).free
        except OSError as error:
            return f"the folder of all jobs cannot be used: {error}"
        return f"the disk of {self.jobs_dir} is full" if free < LOW_BYTES else None

    def start(self, job: Job) -> None:
        """Start the keeper of the present attempt, unless somebody has the attempt. What prevents it, `look` tells."""
        key = (job.id, job.attempt)
        if key in self._refused or (key in self._keepers and self._keepers[key].poll() is None):
            return
        files = self._files(job)
        try:
            files.folder.mkdir(mode=0o700, exist_ok=True)
            if files.read_claim() is not None:
                return
            files.write_request(self._commands(job, files.folder))
            self._keepers[key] = self._spawn(job, files)
        except DrumlineError as error:
            self._refuse(job, "bad_request", error.problem, error.fix)
        except OSError as error:
            self._refuse(job, "not_started", *_in_words(error, files.folder))

    def ask_to_stop(self, job: Job) -> None:
        """Let the attempt save and end; one that has not begun never will. Asking again changes nothing."""
        files = self._files(job)
        if job.pid is None and self.jobs_dir.is_dir():
            files.folder.mkdir(mode=0o700, exist_ok=True)
        if not files.folder.is_dir():
            return  # `look` tells
        claim = files.read_claim()
        if claim is None:
            files.take(Claim(machine_id(), self._clock(), void="stopped", message="stopped before it began"))
            claim = files.read_claim()
        if claim is not None and claim.pid is not None and claim.began is not None and claim.machine == machine_id():
            send(claim.pid, claim.began, signal.SIGTERM)

    def kill(self, job: Job) -> None:
        """End all processes of the attempt at once; `look` tells the rest."""
        try:
            self.ask_to_stop(job)  # what has not begun never will
        finally:
            end_marked(mark_of(job.id, job.attempt), SWEEP_S)

    def look(self, job: Job) -> Event | None:
        """What has happened to the present attempt of an active job since its record was written.

        An end is told once no process of the attempt is left. Raises OSError where its folder cannot be read.
        """
        files, now = self._files(job), self._clock()
        if not self.jobs_dir.is_dir():  # a disk that is not mounted: all jobs would be lost at once
            raise FileNotFoundError(errno.ENOENT, "the folder of all jobs is not there", str(self.jobs_dir))
        refused = self._refused.get((job.id, job.attempt))
        if refused is not None:
            return refused if self._is_swept(job) else None
        if not files.folder.is_dir():
            return self._of_folderless(job, now)
        end = files.read_end()
        claim = files.read_claim()
        if end is None and claim is None:
            return self._of_unclaimed(job, files, now)
        if end is None and claim is not None and claim.void is None:
            here = claim.machine == machine_id()
            if here and claim.pid is not None and claim.began is not None and is_alive(claim.pid, claim.began):
                return self._of_living(job, files, claim, now)
            if files.is_held():
                return None  # it lives in another container, from where it is looked after
            end = files.read_end()  # it may have been written between the two looks
        if not self._is_swept(job):
            return None
        if end is not None:
            return Ended(_found(end), now, job.attempt)
        assert claim is not None
        return self._without_end(job, files, claim, now)

    def tidy(self, job: Job) -> None:
        """Remove what unfinished work of an ended job has left beside its files."""
        remove_unfinished(exported_of(self.folder(job.id)))

    def keep_only(self, living: Collection[tuple[str, int]]) -> None:
        """Keep nothing in mind but these attempts, given by job and number; who ended the others is no matter.

        A keeper is waited for, so that none stays a zombie: one that is still ending is so the next time.
        """
        ended = [key for key, keeper in self._keepers.items() if key not in living and keeper.poll() is not None]
        for key in ended:
            del self._keepers[key]
        for kept in (self._refused, self._lingering, self._unclaimed):
            for key in [key for key in kept if key not in living]:
                del kept[key]

    def close(self) -> None:
        """Let go of everything; what runs goes on without this process."""
        for keeper in self._keepers.values():
            if keeper.poll() is None:
                keeper.returncode = 0  # nobody here waits for it any more
        self._keepers.clear()

    def _files(self, job: Job) -> AttemptFiles:
        return AttemptFiles(self.folder(job.id), job.attempt)

    def _spawn(self, job: Job, files: AttemptFiles) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            return subprocess.Popen(
                (*KEEPER, str(files.folder), str(files.attempt)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=files.folder,
                env={**environ, MARK: mark_of(job.id, job.attempt)},
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _is_swept(self, job: Job) -> bool:
        """Whether no process of the attempt is left; those that are, are killed."""
        key, left = (job.id, job.attempt), end_marked(mark_of(job.id, job.attempt), SWEEP_S)
        if not left:
            self._lingering.pop(key, None)
            return True
        since = self._lingering.setdefault(key, time.monotonic())
        if time.monotonic() - since > LINGERS_S:
            self._lingering[key] = math.inf  # said once
            logger.warning("%s: killed, and not gone yet: pid %s", job.id, ", ".join(map(str, left)))
        return False

    def _of_folderless(self, job: Job, now: float) -> Event | None:
        """A job whose folder is not there: not made yet, or removed."""
        if job.pid is None and job.state != "running":
            return None
        if job.pid is not None and job.pid_began is not None and is_alive(job.pid, job.pid_began):
            folder = str(self.folder(job.id)).encode()
            if folder not in Path(f"/proc/{job.pid}/cmdline").read_bytes().split(b"\0"):
                raise FileNotFoundError(errno.ENOENT, "another data directory has this job", str(self.folder(job.id)))
        return Missing(now) if self._is_swept(job) else None

    def _of_living(self, job: Job, files: AttemptFiles, claim: Claim, now: float) -> Event | None:
        assert claim.pid is not None and claim.began is not None
        if job.pid is None:
            return Started(claim.pid, claim.began, now, job.attempt)
        # Another attempt's may lie there, or that of the job whose work this one goes on with. Both files are stamped
        # by the file system, whose clock need not be this machine's.
        if job.state == "starting" and _has_begun(job, files):
            return Began(now, job.attempt)
        return None

    def _of_unclaimed(self, job: Job, files: AttemptFiles, now: float) -> Event | None:
        """A keeper that is on its way, or never will be."""
        key = (job.id, job.attempt)
        keeper = self._keepers.get(key)
        late = self._steady() - self._unclaimed.setdefault(key, self._steady()) > START_S
        if keeper is not None and keeper.poll() is not None:
            # Another's may be just about to claim; the lock comes before the claim, so it is looked at first.
            if files.is_held() or files.read_claim() is not None:
                return None
            problem, fix = _last_words(files.log) or ("its keeper ended before it began", f"see {files.log}")
            if full := self.problem():  # which a log on the same disk cannot tell
                problem, fix = full, "make room, and retry it"
            self._refuse(job, "not_started", problem, fix)
        elif late:
            fix = "see whether the machine has memory and processes left"
            self._refuse(job, "not_started", f"its keeper did not begin within {START_S:g} s", fix)
        return None  # it is claimed, one way or the other: the next look tells

    def _without_end(self, job: Job, files: AttemptFiles, claim: Claim, now: float) -> Event:
        """An attempt of which nobody is left, and nobody has said how it ended."""
        if claim.void == "refused":
            reason, _, message = claim.message.partition(": ")
            return Refused(reason, message, claim.fix, now, job.attempt)
        if claim.void == "stopped":
            return Ended(End(INTERRUPTED, message=claim.message), now, job.attempt)
        if claim.machine and claim.machine != machine_id():
            return Restarted(now, job.attempt, _lasted_s(files))
        with suppress(OSError):
            if shutil.disk_usage(files.folder).free < LOW_BYTES:
                message = f"the disk of {files.folder} is full: nobody could write how it ended"
                return Ended(End(1, message=message, fix="make room, and retry it"), now, job.attempt)
        return Gone(now, job.attempt)

    def _refuse(self, job: Job, reason: str, message: str, fix: str) -> None:
        """Claim the attempt for nobody, so that no keeper begins it later."""
        void = Claim(machine_id(), self._clock(), void="refused", message=f"{reason}: {message}", fix=fix)
        try:
            self._files(job).take(void)
        except OSError:
            refused = Refused(reason, message, fix, self._clock(), job.attempt)
            self._refused[job.id, job.attempt] = refused


def _has_begun(job: Job, files: AttemptFiles) -> bool:
    """Whether the attempt has come to its run: it has written there since it was claimed."""
    since = files.claim.stat().st_mtime_ns
    if job.work.kind == "infer":
        return has_begun(files.run.path, since)
    return files.run.plan.is_file() and files.run.plan.stat().st_mtime_ns >= since


def _lasted_s(files: AttemptFiles) -> float:
    """How long an attempt of which nobody is left has written something, at least."""
    last = []
    for path in (files.log, files.run.metrics, files.run.events):
        with suppress(OSError):
            last.append(path.stat().st_mtime)
    with suppress(OSError):
        return max(0.0, max(last, default=0.0) - files.claim.stat().st_mtime)
    return 0.0


def _found(end: EndRecord) -> End:
    """What the keeper saw; a GPU that somebody else took at the last moment is waited for, not a bad request."""
    if end.exit_status == BAD_REQUEST and end.message.startswith(NOT_TO_BE_USED):
        return End(INTERRUPTED, message=end.message)
    return End(end.exit_status, end.signal, end.message, end.fix, end.step, end.code)


def _in_words(error: OSError, folder: Path) -> tuple[str, str]:
    if error.errno in _NO_ROOM:
        return f"the disk of {folder} is full", "make room, and retry it"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{folder} cannot be written to: {error.strerror}", "let the service's user own the data directory"
    return f"its files cannot be written: {error}", "see whether the data directory's disk is well"


def _last_words(log: Path) -> tuple[str, str] | None:
    """What a keeper said that could not begin."""
    with suppress(OSError):
        text = end_of(log, most=_LAST_BYTES).strip()
        return error_in(text) or (text.rpartition("\n")[2], f"see {log}") if text else None
    return None
