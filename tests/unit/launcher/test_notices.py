from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM, SIGUSR1, SIGUSR2
from typing import Any

import pytest

from drumline.launcher.notices import REPEAT_S, URGENT, Notice, handled, noting
from drumline.launcher.spec import MARK

SOON, LATER = REPEAT_S / 2, REPEAT_S * 2
STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ([(SIGTERM, 0), (SIGTERM, SOON), (SIGTERM, LATER)], ["new", "same", "again"]),
        ([(SIGINT, 0), (SIGINT, LATER)], ["new", "again"]),
        ([(SIGINT, 0), (SIGTERM, SOON), (SIGTERM, LATER)], ["new", "new", "again"]),
        ([(SIGUSR1, 0), (SIGUSR1, LATER), (SIGUSR2, LATER)], ["new", "same", "new"]),
        # A scheduler's early word, its last one, and the same to the whole group.
        ([(SIGUSR1, 0), (SIGTERM, 100), (SIGTERM, 100)], ["new", "new", "same"]),
    ],
)
def test_what_a_signal_says(signals: list[tuple[signal.Signals, float]], expected: list[str]) -> None:
    times = iter([time for number, time in signals if number in URGENT])  # of others the time says nothing
    notice = Notice(lambda: next(times))
    assert [notice.take(number) for number, _ in signals] == expected
    assert notice.first is signals[0][0]


def test_inside_signals_are_noted_and_outside_they_go_where_they_went() -> None:
    before = {name: signal.getsignal(signal.Signals[name]) for name in STOP_SIGNALS}
    with noting(STOP_SIGNALS) as notice:
        assert notice.first is None
        os.kill(os.getpid(), SIGUSR1)
        os.kill(os.getpid(), SIGTERM)
    assert notice.first is SIGUSR1
    assert {name: signal.getsignal(signal.Signals[name]) for name in STOP_SIGNALS} == before


def test_entered_again_it_is_the_same_notice_also_in_another_thread() -> None:
    with noting(["SIGUSR1"]) as outer:
        os.kill(os.getpid(), SIGUSR1)
        with noting(["SIGUSR1", "SIGUSR2"]) as inner:
            assert inner is outer
        assert in_a_thread(lambda: next(iter_notice())) is outer
        os.kill(os.getpid(), SIGUSR1)  # still ours
    with noting(["SIGUSR1"]) as later:
        assert later is not outer and later.first is None


def iter_notice() -> Iterator[Notice]:
    with noting(STOP_SIGNALS) as notice:
        yield notice


def in_a_thread(call: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_outside_of_the_main_thread_handlers_stay() -> None:
    def look() -> list[Any]:
        with noting(STOP_SIGNALS):
            return [signal.getsignal(signal.Signals[name]) for name in STOP_SIGNALS]

    assert in_a_thread(look) == [signal.getsignal(signal.Signals[name]) for name in STOP_SIGNALS]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(SIGUSR2, signal.SIG_IGN)
    try:
        with handled(["SIGUSR2"], Notice().handle):
            os.kill(os.getpid(), SIGUSR2)
            assert signal.getsignal(SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(SIGUSR2, before)


def test_a_handler_outside_of_python_stays() -> None:
    with Path(os.devnull).open("w") as nowhere:
        faulthandler.register(SIGUSR2, nowhere)
        try:
            with noting(STOP_SIGNALS) as notice:
                os.kill(os.getpid(), SIGUSR2)
            assert notice.first is None
            os.kill(os.getpid(), SIGUSR2)  # would end this process, were the handler gone
        finally:
            faulthandler.unregister(SIGUSR2)


def test_the_second_urgent_signal_interrupts_but_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    notice = Notice(lambda: now)
    with handled(["SIGINT"], notice.handle):
        os.kill(os.getpid(), SIGINT)
        now = LATER
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), SIGINT)
        monkeypatch.setenv(MARK, "a launch")
        os.kill(os.getpid(), SIGINT)  # its launcher decides
