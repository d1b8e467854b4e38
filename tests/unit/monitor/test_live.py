from __future__ import annotations

import io
import logging
import os
import pty
import signal
import threading
from collections.abc import Callable, Iterator
from typing import IO

import pytest
from rich.console import Console

from drumline.monitor.keys import END, SUSPEND, Keys
from drumline.monitor.live import repeat, show
from drumline.monitor.scene import Scene, ViewState
from drumline.monitor.sinks import log_sink
from tests.unit.monitor.scenes import scene


@pytest.fixture
def terminal() -> Iterator[tuple[int, IO[str]]]:
    person, program = pty.openpty()
    with open(program) as stream:  # noqa: PTH123 - a descriptor
        yield person, stream
    os.close(person)


class Script:
    """Scenes in a row; before each, something happens."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.actions = list(actions)
        self.given = 0

    def __call__(self) -> Scene:
        self.given += 1
        if self.actions:
            self.actions.pop(0)()
        return scene()


def screen_of(width: int = 60) -> tuple[io.StringIO, Console]:
    file = io.StringIO()
    return file, Console(file=file, force_terminal=True, width=width, height=24, color_system=None)


def test_keys_change_the_picture_until_q(terminal: tuple[int, IO[str]]) -> None:
    person, stream = terminal
    file, console = screen_of()
    script = Script(lambda: os.write(person, b"3"), lambda: os.write(person, b"s"), lambda: os.write(person, b"q"))
    state = show(console, Keys(stream), script, 0.01)
    assert (state.view, state.sort, state.done) == ("processes", "use", True)
    text = file.getvalue()
    assert text.startswith("\x1b[?1049h") and text.endswith("\x1b[?1049l")
    assert "[1 overview]" in text and "[3 processes]" in text


def test_held_still_no_new_scene_is_asked_for(terminal: tuple[int, IO[str]]) -> None:
    person, stream = terminal
    file, console = screen_of()
    script = Script()
    timer = threading.Timer(0.1, lambda: os.write(person, b"q"))
    timer.start()
    show(console, Keys(stream), script, 0.001, ViewState(paused=True))
    timer.join()
    assert script.given == 1
    assert file.getvalue().count("PAUSED") > 1


def test_a_signal_ends_it_in_order() -> None:
    file, console = screen_of()
    state = show(console, Keys(), Script(lambda: os.kill(os.getpid(), signal.SIGTERM)), 60.0)
    assert state.done
    assert file.getvalue().endswith("\x1b[?1049l")


def test_who_ends_and_suspends_it_at_once_means_the_end(terminal: tuple[int, IO[str]]) -> None:
    _, console = screen_of()

    class Both(Keys):
        def read(self, timeout_s: float) -> list[str]:
            return [SUSPEND, END]

        def suspend(self) -> None:
            raise AssertionError("it was suspended")

    assert show(console, Both(terminal[1]), Script(), 60.0).done


def test_a_terminal_that_takes_no_more_output_ends_it(terminal: tuple[int, IO[str]]) -> None:
    _, stream = terminal

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    show(Console(file=Gone(), force_terminal=True, width=60, height=24), Keys(stream), Script(), 60.0)


def test_an_error_leaves_the_terminal_in_order(terminal: tuple[int, IO[str]]) -> None:
    _, stream = terminal
    file, console = screen_of()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        show(console, Keys(stream), Script(fail), 60.0)
    assert file.getvalue().endswith("\x1b[?1049l")


def test_the_log_goes_into_the_picture(capfd: pytest.CaptureFixture[str]) -> None:
    file, console = screen_of()
    logger = logging.getLogger("drumline.monitor.background")

    def warn() -> None:
        logger.warning("the disk is slow")
        log_sink({"severity": "critical", "state": "firing", "subject": "GPU-a", "message": "sick", "action": ""})

    script = Script(warn, lambda: os.kill(os.getpid(), signal.SIGINT))
    show(console, Keys(), script, 0.001)
    assert "warning: the disk is slow" in file.getvalue()
    assert "alert firing" not in file.getvalue()  # alerts have a place of their own
    assert not logging.getLogger("drumline").handlers
    assert "slow" not in capfd.readouterr().out


def test_without_a_terminal_scenes_come_at_their_pace_until_a_signal() -> None:
    drawn: list[Scene] = []
    script = Script(*[lambda: None] * 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    repeat(drawn.append, Keys(), script, 0.001)
    assert len(drawn) == 5
