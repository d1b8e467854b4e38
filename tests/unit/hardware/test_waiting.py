from __future__ import annotations

import threading

import pytest

from drumline.hardware.waiting import Unavailable, within


def test_gives_what_the_call_gives_and_raises_what_it_raises() -> None:
    def fail() -> None:
        raise LookupError("of its own")

    driver = object()
    assert within(5.0, lambda: 3, driver) == 3
    with pytest.raises(LookupError, match="of its own"):
        within(5.0, fail, driver)


def test_a_late_call_is_a_value_and_others_are_refused_until_it_is_answered() -> None:
    driver, another = object(), object()
    released, answered = threading.Event(), threading.Event()

    def hang() -> None:
        released.wait()
        answered.set()

    assert within(0.05, hang, driver) == Unavailable("the driver did not answer within 0.05 s")
    asked: list[int] = []
    refused = within(5.0, lambda: asked.append(1), driver)
    assert isinstance(refused, Unavailable) and refused.reason.startswith("the driver has not answered for")
    assert asked == []
    assert within(5.0, lambda: 4, another) == 4
    released.set()
    assert answered.wait(5.0)
    for thread in threading.enumerate():
        if thread.name == "drumline-driver":
            thread.join(5.0)
    assert within(5.0, lambda: 5, driver) == 5


def test_a_call_that_is_answered_late_may_still_close_what_it_opened() -> None:
    driver, released = object(), threading.Event()
    closed: list[object] = []

    def hang() -> None:
        released.wait()
        closed.append(within(5.0, lambda: "closed", driver))

    within(0.05, hang, driver)
    released.set()
    for thread in threading.enumerate():
        if thread.name == "drumline-driver":
            thread.join(5.0)
    assert closed == ["closed"]
