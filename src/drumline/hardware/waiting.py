"""Questions to a driver that may never answer: asked on a thread that nobody has to wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Unavailable:
    """Why NVML gave no value."""

    reason: str
    code: int | None = None
    """NVML's return code; None where the question never reached NVML."""


@dataclass(frozen=True)
class _Stuck:
    """A question that is late, and may stay so for ever: nothing ends a thread that waits inside a driver."""

    thread: threading.Thread
    since: float
    driver: Any


_stuck: dict[int, _Stuck] = {}


def within(limit_s: float, call: Callable[[], Value], driver: Any = None) -> Value | Unavailable:
    """What `call` gives, or Unavailable where that takes longer than limit_s; what it raises is raised here.

    While a late call of this process still waits, others are refused at once: each would only hang beside it. `driver`
    is whose calls these are, for tests with several; None and any module: the machine's.
    """
    key = 0 if driver is None or isinstance(driver, ModuleType) else id(driver)
    late = _stuck.get(key)
    # A late call that is answered after all may still have something to close.
    if late is not None and late.thread is not threading.current_thread():
        if late.thread.is_alive():
            return Unavailable(f"the driver has not answered for {time.monotonic() - late.since:.0f} s")
        _stuck.pop(key, None)
    outcome: list[tuple[Any, BaseException | None]] = []

    def answer() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # raised again where it is waited for
            outcome.append((None, error))

    began = time.monotonic()
    thread = threading.Thread(target=answer, name="drumline-driver", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        _stuck[key] = _Stuck(thread, began, driver)
        return Unavailable(f"the driver did not answer within {limit_s:g} s")
    thread.join()
    value, error = outcome[0]
    if error is not None:
        raise error
    found: Value = value
    return found
