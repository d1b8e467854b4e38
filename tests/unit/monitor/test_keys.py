from __future__ import annotations

import os
import pty
import select
import signal
import termios
from collections.abc import Iterator
from typing import IO

import pytest

from drumline.monitor.keys import END, RESIZE, SUSPEND, Keys, decode


@pytest.mark.parametrize(
    ("sent", "keys", "rest"),
    [
        ("q", ["q"], ""),
        ("\x1b[A\x1bOBj", ["up", "down", "j"], ""),
        ("\t\x1b[Z \r\n", ["tab", "back tab", "space", "enter", "enter"], ""),
        ("\x1b", [], "\x1b"),
        ("s\x1b[", ["s"], "\x1b["),
        ("\x1b[1;5", [], "\x1b[1;5"),
        ("\x1b[1;5C", [], ""),  # Ctrl and an arrow: nothing here
        ("\x1b[15~r", ["r"], ""),
        ("\x1bx", ["escape", "x"], ""),
        ("\x00\x07ü", ["ü"], ""),
    ],
)
def test_what_a_terminal_sends_becomes_keys(sent: str, keys: list[str], rest: str) -> None:
    assert decode(sent) == (keys, rest)


@pytest.fixture
def terminal() -> Iterator[tuple[int, IO[str]]]:
    """Both ends of a pseudo-terminal: a person's and the program's."""
    person, program = pty.openpty()
    with open(program) as stream:  # noqa: PTH123 - a descriptor
        yield person, stream
    os.close(person)


def echoes(stream: IO[str]) -> bool:
    return bool(termios.tcgetattr(stream.fileno())[3] & termios.ECHO)


def test_keys_are_read_one_by_one_without_echo_and_everything_is_put_back(terminal: tuple[int, IO[str]]) -> None:
    person, stream = terminal
    before = termios.tcgetattr(stream.fileno())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH, signal.SIGTSTP)]
    with Keys(stream) as keys:
        assert not echoes(stream)
        os.write(person, b"s\x1b[B")
        assert keys.read(5.0) == ["s", "down"]
        os.write(person, b"\x1b[")
        assert keys.read(0.0) == ["escape", "["]  # the rest never came
        assert keys.read(0.0) == []
        os.write(person, b"rm -rf\n")  # typed, and not read any more
        assert select.select([stream], [], [], 60.0)[0]
    assert termios.tcgetattr(stream.fileno()) == before
    assert handlers == [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGWINCH, signal.SIGTSTP)
    ]
    os.set_blocking(stream.fileno(), False)
    with pytest.raises(BlockingIOError):
        os.read(stream.fileno(), 100)


def test_the_terminal_is_put_back_after_an_error_too(terminal: tuple[int, IO[str]]) -> None:
    _, stream = terminal
    with pytest.raises(ZeroDivisionError), Keys(stream):
        assert not echoes(stream)
        raise ZeroDivisionError
    assert echoes(stream)


@pytest.mark.parametrize(
    ("number", "event"),
    [
        (signal.SIGTERM, END),
        (signal.SIGINT, END),
        (signal.SIGHUP, END),
        (signal.SIGWINCH, RESIZE),
    ],
)
def test_signals_are_events_and_wake_who_waits(number: signal.Signals, event: str) -> None:
    with Keys() as keys:
        os.kill(os.getpid(), number)
        assert keys.read(60.0) == [event]


def test_ctrl_z_is_an_event_only_where_a_terminal_must_be_given_back(terminal: tuple[int, IO[str]]) -> None:
    before = signal.getsignal(signal.SIGTSTP)
    with Keys():
        assert signal.getsignal(signal.SIGTSTP) == before
    with Keys(terminal[1]) as keys:
        os.kill(os.getpid(), signal.SIGTSTP)
        assert keys.read(60.0) == [SUSPEND]


def test_a_second_signal_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Keys() as keys:
        os.kill(os.getpid(), signal.SIGINT)
        assert keys.read(60.0) == [END]
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Keys() as keys:
            os.kill(os.getpid(), signal.SIGHUP)  # as under nohup
            assert keys.read(0.0) == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_goes_away_is_the_end() -> None:
    person, program = pty.openpty()
    with open(program) as stream, Keys(stream) as keys:  # noqa: PTH123 - a descriptor
        os.close(person)
        assert keys.read(60.0) == [END]


def test_where_there_is_no_terminal_there_are_no_keys() -> None:
    reading, writing = os.pipe()
    with open(reading) as stream, Keys(stream) as keys:  # noqa: PTH123 - a descriptor
        os.write(writing, b"q")
        assert keys.read(0.0) == []
        os.close(writing)
