"""The process that holds a model and answers, as `drumline chat` speaks to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Self

import typer

from drumline.errors import ConfigError, DataError, DrumlineError, HardwareError

END_S = 5.0
"""How long the process may take to end once nobody asks any more."""


class Speaking:
    """A child process with a model; ends with the `with` block. Raises on entry what loading the model comes to."""

    def __init__(self, source: str, wishes: Mapping[str, Any], *, uses_gpu: bool) -> None:
        self._source = source
        self._wishes = {name: value for name, value in wishes.items() if value is not None}
        self._uses_gpu = uses_gpu
        self._child: subprocess.Popen[str] | None = None
        self._complaints: IO[bytes] | None = None
        self._claims: Any = None
        self.about: dict[str, Any] = {}
        """`about`, what it is; `chats`, whether it has a chat template; `device`."""
        self.has_ended = False

    def __enter__(self) -> Self:
        """Start it, and wait until the model is there."""
        from drumline.hardware.claims import Claims

        self._claims = Claims(f"chat with {self._source}")
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": self._gpu() if self._uses_gpu else ""}
        self._complaints = tempfile.TemporaryFile()
        # A process group of its own: Ctrl-C in the terminal reaches this process alone, which passes it on.
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "drumline.build.chat", self._source, json.dumps(self._wishes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            encoding="utf-8",
            env=environ,
            process_group=0,
        )
        try:
            self.about = self._next()["ready"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        """End the process; one that does not end by itself is killed."""
        child = self._child
        if child is None or child.stdin is None or child.stdout is None or self._complaints is None:
            return
        with suppress(BrokenPipeError):  # it has ended before
            child.stdin.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        self._complaints.close()

    def _gpu(self) -> str:
        """The UUID of a GPU that is free and healthy, claimed until this process ends; empty where there is none."""
        from drumline.config.schema import HardwareConfig
        from drumline.hardware.inventory import detect
        from drumline.launcher.gpus import take_gpus

        try:
            return ",".join(gpu.uuid for gpu in take_gpus(HardwareConfig(count=1), detect(), self._claims).gpus)
        except HardwareError as error:
            typer.echo(f"the CPU is used: {error.problem}", err=True)
            return ""

    def ask(self, messages: list[dict[str, str]], show: Callable[[str], None]) -> dict[str, Any]:
        """Let the model answer; show: takes each piece of it. Ctrl-C stops the answer, what there is of it stands.

        Returns `answer`, `tokens`, `seconds` and `ended`: end, length or stopped. Raises what the model refuses.
        """
        self._send({"ask": messages})
        with self._stopping():
            while True:
                record = self._next()
                if "done" in record:
                    done: dict[str, Any] = record["done"]
                    return done
                show(record["text"])

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Inside, Ctrl-C asks the model to stop."""
        before = signal.signal(signal.SIGINT, lambda number, frame: self._send({"stop": True}))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _send(self, record: dict[str, Any]) -> None:
        assert self._child is not None and self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(record) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _next(self) -> dict[str, Any]:
        assert self._child is not None and self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise self._ended()
        record: dict[str, Any] = json.loads(line)
        if "problem" in record:
            kind = ConfigError if record["code"] == ConfigError.code else DataError
            raise kind(record["problem"], record["fix"])
        return record

    def _ended(self) -> DrumlineError:
        """The error for a process that is gone."""
        assert self._child is not None and self._complaints is not None
        self.has_ended = True
        status = self._child.wait(END_S)
        self._complaints.seek(0)
        words = self._complaints.read().decode(errors="replace").strip().splitlines() or ["no message"]
        return DrumlineError(
            f"the process with the model has ended (exit status {status}): {words[-1]}",
            "see whether the installation is sound: drumline doctor; where memory is short, try --set device=cpu",
        )
