"""Single keys from a terminal, and what else reaches a program there; the terminal is given back whatever happens.

Signals never raise here: they become events that the loop reads at a place where it can end in order.
"""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import time
from contextlib import suppress
from types import FrameType
from typing import IO, Any, Self

END, RESIZE, SUSPEND = "end", "resize", "suspend"
"""Events beside keys: somebody wants the program to end, the terminal has another size, Ctrl-Z."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SEQUENCE_S = 0.05
"""How long the rest of a key's sequence may take; after that an escape was the key of that name. Over slow lines a
sequence arrives in parts, and nobody types that fast."""

_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_NAMES = {
    **{f"\x1b{start}{end}": name for start in "[O" for end, name in _ARROWS.items()},
    "\x1b[Z": "back tab",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    " ": "space",
}
# ECMA-48: a control sequence is ESC [, parameters, one final byte; ESC O and one byte is how keypads write theirs.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_BEGUN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")


def decode(text: str) -> tuple[list[str], str]:
    """Pure: the keys in what a terminal sent, by name or as the character itself, and an unfinished rest.

    Sequences of keys without a name here, and control characters, are passed over.
    """
    keys: list[str] = []
    while text:
        if _BEGUN.match(text):
            return keys, text
        sequence = _SEQUENCE.match(text)
        part = sequence.group() if sequence else text[0]
        text = text[len(part) :]
        if part == "\x1b":
            keys.append("escape")
        elif part in _NAMES:
            keys.append(_NAMES[part])
        elif len(part) == 1 and part.isprintable():
            keys.append(part)
    return keys, ""


class Keys:
    """Keys of a terminal as they are typed, without echo; a context manager that puts everything back.

    Where there is no stream, or it is no terminal, there are no keys, and the other events remain. For the main thread.
    """

    def __init__(self, stream: IO[Any] | None = None) -> None:
        """stream: standard input, where keys are wanted. Nothing is changed before the context is entered."""
        self._stream = stream
        self._terminal: int | None = None
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._wake = (-1, -1)
        self._events: list[str] = []

    def __enter__(self) -> Self:
        self._wake = os.pipe()
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        try:
            self._listen()
            self._take_terminal()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._give_terminal_back()
        self._stop_listening()
        for descriptor in self._wake:
            if descriptor >= 0:
                os.close(descriptor)
        self._wake = (-1, -1)

    def read(self, timeout_s: float) -> list[str]:
        """Keys and events since the last call, in their order; waits for the first one up to timeout_s seconds."""
        limit = time.monotonic() + timeout_s
        rest = ""
        while True:
            wait_s = max(0.0, SEQUENCE_S if rest else limit - time.monotonic())
            text, ended = self._wait(wait_s)
            keys, rest = decode(rest + text) if text or not rest else (["escape", *rest[1:]], "")
            self._events += keys
            if ended:
                self._events.append(END)
            if (self._events or time.monotonic() >= limit) and not rest:
                events, self._events = self._events, []
                return events

    def suspend(self) -> None:
        """Stop this process as Ctrl-Z does, the terminal given back meanwhile; returns when it is continued."""
        self._give_terminal_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._take_terminal()

    def _wait(self, wait_s: float) -> tuple[str, bool]:
        """What was typed, and whether the terminal has gone; empty after wait_s, or after a signal."""
        sources = [self._wake[0]] + ([] if self._terminal is None else [self._terminal])
        ready, _, _ = select.select(sources, [], [], wait_s)
        if self._wake[0] in ready:
            with suppress(BlockingIOError):
                os.read(self._wake[0], 1024)
        if self._terminal is None or self._terminal not in ready:
            return "", False
        try:
            data = os.read(self._terminal, 1024)
        except OSError:  # the other side of the terminal is closed
            data = b""
        return data.decode(errors="ignore"), not data

    def _take_terminal(self) -> None:
        if self._stream is None:
            return
        try:
            number = self._stream.fileno()
            self._before = termios.tcgetattr(number)
            raw = [*self._before[:6], [*self._before[6]]]
            raw[3] &= ~(termios.ICANON | termios.ECHO)  # signals of Ctrl-C and Ctrl-Z stay
            raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
            termios.tcsetattr(number, termios.TCSADRAIN, raw)
        except (OSError, ValueError, termios.error):  # closed, no real file, or no terminal
            return
        self._terminal = number

    def _give_terminal_back(self) -> None:
        number, self._terminal = self._terminal, None
        if number is not None:
            with suppress(termios.error):  # it has gone
                # What was typed and not read must not become the shell's next command.
                termios.tcsetattr(number, termios.TCSAFLUSH, self._before)

    def _listen(self) -> None:
        # A signal that is ignored stays so: nohup, or a shell's background job.
        for number in (each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN):
            self._handlers[number] = signal.signal(number, self._on_end)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self._tell(RESIZE))
        if self._stream is not None:  # who only reads signals has nothing to give back before it stops
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, lambda *_: self._tell(SUSPEND))

    def _stop_listening(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        # The first one ends in order. Where that takes too long, such as on a terminal that takes no more output, the
        # second one ends at once.
        signal.signal(number, self._handlers[number])
        self._tell(END)

    def _tell(self, event: str) -> None:
        self._events.append(event)
        with suppress(OSError):  # full: it wakes anyway
            os.write(self._wake[1], b"!")
