"""A pseudo-terminal with a real command in it, and what stands on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PROGRAM = Path(__file__).with_name("simulated_command.py")
HOME, ALTERNATE, BACK, SHOWN = "\x1b[H", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """`drumline ARGUMENTS` over a scripted NVML, as the foreground process of a terminal of this size."""

    def __init__(
        self, scenario: str, *arguments: str, width: int = 100, height: int = 24, then: str = "", **environ: str
    ) -> None:
        """then: what a shell with job control does when the command ends or is stopped; without it there is none."""
        self._person, program = pty.openpty()
        self.resize(width, height)
        self.settings = termios.tcgetattr(program)
        """Of the terminal, before the command has begun."""
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        command = [sys.executable, str(PROGRAM), scenario, *arguments]
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-ic", f"{shlex.join(command)}; {then}"] if then else command,
            stdin=program,
            stdout=program,
            stderr=program,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**known, "TERM": "xterm-256color", **environ},
        )
        self._program = program
        self.output = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in (self._person, self._program):
            if descriptor >= 0:
                os.close(descriptor)

    def resize(self, width: int, height: int) -> None:
        """As when a person drags the window's corner; the kernel tells the foreground process."""
        fcntl.ioctl(self._person, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def type(self, keys: str) -> None:
        """Type these characters."""
        os.write(self._person, keys.encode())

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._program)
        os.close(self._person)
        self._person = self._program = -1

    def shows(self, true: Callable[[list[str]], Any], limit_s: float = 30.0) -> list[str]:
        """Wait until something is true of the screen's lines; fails with them after limit_s."""
        limit = time.monotonic() + limit_s
        while not true(lines := self.lines()):
            assert time.monotonic() < limit, "\n".join(lines)
            self._read(0.05)
        return lines

    def lines(self) -> list[str]:
        """The newest picture that is complete, without colours."""
        pictures = self.output.split(HOME)
        return [_CODES.sub("", line).rstrip("\r") for line in pictures[-1].split("\n")]

    def ends(self) -> int:
        """Wait for the command's end; its exit status."""
        limit = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < limit, self.output
            self._read(0.02)
        self._read(0.0)
        return self.process.returncode

    def is_given_back(self) -> bool:
        """Whether the terminal is as it was: its settings, its screen, its cursor."""
        after = self.output.rpartition(ALTERNATE)[2]
        return termios.tcgetattr(self._program) == self.settings and SHOWN in after and BACK in after

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        self.process.send_signal(number)

    def _read(self, wait_s: float) -> None:
        while self._person >= 0 and select.select([self._person], [], [], wait_s)[0]:
            self.output += os.read(self._person, 1 << 16).decode()
            wait_s = 0.0
