"""The live view on a terminal: draws scenes until a key or a signal ends it, and leaves the terminal as it was."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rich.console import Console
from rich.live import Live

from drumline.monitor.keys import END, RESIZE, SUSPEND, Keys
from drumline.monitor.scene import Look, Scene, ViewState, press
from drumline.monitor.view import screen

NOTE_S = 60.0
"""How long a line of the log is shown."""


def show(
    console: Console, keys: Keys, scene_of: Callable[[], Scene], every_s: float, state: ViewState | None = None
) -> ViewState:
    """Draw what scene_of gives every `every_s` seconds, and at once after a key, until somebody wants it to end.

    Returns what the person had chosen last. Runs in the main thread, as Keys needs it. A terminal that goes away ends
    it as well.
    """
    state = state or ViewState()
    with keys, _quiet_log() as log:
        while not state.done:
            with _on_alternate_screen(console) as live:
                state = _until_left(live, keys, lambda: replace(scene_of(), note=log.newest()), every_s, state)
            if not state.done:
                keys.suspend()
    return state


def _until_left(live: Live, keys: Keys, scene_of: Callable[[], Scene], every_s: float, state: ViewState) -> ViewState:
    """Draw until the view is left: for good, which is `done`, or for a while (Ctrl-Z)."""
    scene = scene_of()
    due = time.monotonic() + every_s
    while True:
        try:
            live.update(screen(scene, state, look_of(live.console)), refresh=True)
        except OSError:  # the terminal has gone
            return replace(state, done=True)
        events = keys.read(max(0.0, due - time.monotonic()))
        if END in events:
            return replace(state, done=True)
        if SUSPEND in events:
            return state
        for key in events:
            state = press(state, key, scene) if key != RESIZE else state
        if state.done:
            return state
        if time.monotonic() >= due:
            scene = scene if state.paused else scene_of()
            due = time.monotonic() + every_s


def look_of(console: Console) -> Look:
    """What this terminal can show now."""
    return Look(console.width, console.height, console.options.ascii_only)


@contextmanager
def _on_alternate_screen(console: Console) -> Iterator[Live]:
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    try:
        with suppress(OSError):  # a terminal that has gone ends it at the first picture
            live.start()
        yield live
    finally:
        with suppress(OSError):
            live.stop()


class _LastLine(logging.Handler):
    """Keeps the newest record, which would tear the picture if it were printed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = ("", 0.0)

    def newest(self) -> str:
        """The last one, for NOTE_S; empty after that."""
        line, when = self._last
        return line if time.monotonic() - when < NOTE_S else ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.funcName == "log_sink":  # alerts have a place of their own in the picture
            return
        self._last = (f"{record.levelname.lower()}: {record.getMessage()}", time.monotonic())


@contextmanager
def _quiet_log() -> Iterator[_LastLine]:
    handler = _LastLine()
    logger = logging.getLogger("drumline")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def repeat(draw: Callable[[Scene], None], keys: Keys, scene_of: Callable[[], Scene], every_s: float) -> None:
    """For who has no terminal: hand a scene to `draw` every `every_s` seconds, from now on, until a signal ends it."""
    with keys:
        due = time.monotonic()
        while True:
            draw(scene_of())
            due = max(due + every_s, time.monotonic())
            over = False
            while not over:
                if END in keys.read(max(0.0, due - time.monotonic())):
                    return
                over = time.monotonic() >= due
