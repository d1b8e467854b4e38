"""Starts, on each machine of a run, the process that records its GPUs: it watches on while this one trains or hangs."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drumline.launcher.recording import END, MODULE, PHASE, TRAINING, RecordingJob
from drumline.launcher.spec import MARK

if TYPE_CHECKING:
    from drumline.engine.run import Run

logger = logging.getLogger("drumline")

CLOSE_S = 5.0
"""How long the recorder may take to tell its last alerts, once the run has ended."""


class Recorder:
    """The process, which ends with this one at the latest."""

    def __init__(self, job: RecordingJob) -> None:
        """Start it. Raises OSError where that cannot be done."""
        self._log = log_of(job.run_dir, job.node)
        command = [sys.executable, "-P", "-m", MODULE, str(job.run_dir)]
        # Without the launch's mark, by which what a failed launch has left is killed: it ends by itself, and its last
        # words are about that failure.
        environ = {name: value for name, value in os.environ.items() if name != MARK}
        with self._log.open("ab") as log:
            # A process group of its own: that of a worker which does not end in time is killed whole.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environ, process_group=0
            )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        with suppress(BrokenPipeError):
            os.write(self._pipe, job.to_line())
        # From here on the run never waits for it: a recorder that hangs does not read.
        os.set_blocking(self._pipe, False)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def end(self) -> None:
        """Tell it that the run has ended: it says its last words meanwhile. Telling it twice is allowed."""
        self._say(END)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """End it, and wait for its last words; one that takes too long is killed."""
        self.end()
        try:
            status = self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # one that waits inside a driver cannot be killed, and is left to the kernel
            logger.warning("the process that records the GPUs did not end, and was killed; see %s", self._log)
            return
        if status != 0:
            logger.warning("the GPUs were not recorded to the end (exit status %d); see %s", status, self._log)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Inside, what the GPUs do is recorded as that of an evaluation, say, and not of training."""
        self._say(PHASE + name)
        try:
            yield
        finally:
            self._say(PHASE + TRAINING)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return  # and its descriptor may be another file's by now
        with suppress(BrokenPipeError, BlockingIOError):  # it has ended, which its status will tell, or hangs
            os.write(self._pipe, f"{line}\n".encode())


def start_recorder(run: Run) -> Recorder | None:
    """The recorder of this machine, on its first rank, where monitor.record asks for one; all ranks call it.

    Where each rank sees no GPU but its own (srun --gpus-per-task), each has one. A machine on which it cannot be
    started trains without.
    """
    settings, world = run.config.monitor, run.groups.world
    if settings.record is False or (settings.record == "auto" and run.plan.device != "cuda"):
        return None
    elapsed_s = run.clock() - run.began
    each = 0 < len(run.plan.gpus) < world.local_size
    if each or world.size != world.local_size:
        (elapsed_s, *_) = run.groups.side.exchange("recorder", elapsed_s)  # the clock of metrics.jsonl is rank 0's
    if world.local_rank != 0 and not each:
        return None
    node = re.sub(r"[^\w.-]", "_", socket.gethostname())
    job = RecordingJob(
        run_dir=run.directory.path.resolve(),
        gpus=run.plan.gpus,
        node=f"{node}-{world.local_rank}" if each else node,
        machine=0 if world.rank == 0 else 1,
        parent=os.getpid(),
        step=run.progress.step,
        elapsed_s=elapsed_s,
        written=time.time(),
        monitor=settings.model_dump(mode="json"),
        # One that may be used though it is sick would be used again after the restart, for ever.
        sick_gpu=run.config.faults.sick_gpu if run.config.hardware.sick == "leave_out" else "ignore",
    )
    try:
        return Recorder(job)
    except OSError as error:
        logger.warning("the GPUs are not recorded: %s", error)
        return None


def log_of(run_dir: Path, node: str) -> Path:
    """What the recorder of one machine logs."""
    return run_dir / "logs" / f"monitor_{node}.log"
