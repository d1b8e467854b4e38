from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

from drumline.parallel.device_threads import DeviceThreads, Failure

CPU = torch.device("cpu")
mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


def seen() -> dict[str, Any]:
    """What torch and Python keep a thread."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
        "cache": torch.is_autocast_cache_enabled(),
        "mark": mark.get(),
    }


def test_each_thread_has_the_callers_state() -> None:
    threads = DeviceThreads([CPU, CPU, CPU], at_once=True)
    mark.set("here")
    contexts = (
        torch.enable_grad(),
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autocast("cpu", torch.float16, cache_enabled=False),
    )
    for context in contexts:
        with context:
            assert threads.run([seen] * 3) == [seen()] * 3
    assert threads.run([seen] * 2) == [seen()] * 2
    threads.close()


def test_calls_run_at_once_in_threads_that_persist() -> None:
    threads = DeviceThreads([CPU, CPU], at_once=True)
    meeting = threading.Barrier(2, timeout=10)

    def meet() -> int:
        meeting.wait()
        return threading.get_ident()

    first, again = threads.run([meet, meet]), threads.run([meet, meet])
    assert first == again and first[0] == threading.get_ident() != first[1]
    threads.close()


def test_on_the_cpu_they_take_turns() -> None:
    assert DeviceThreads([CPU] * 3).run([threading.get_ident] * 3) == [threading.get_ident()] * 3


@pytest.mark.parametrize("at_once", [True, False])
def test_an_error_is_handed_over_and_the_others_run(at_once: bool) -> None:
    threads = DeviceThreads([CPU] * 3, at_once=at_once)

    def fail() -> int:
        raise ValueError("no")

    failed, one, again = threads.run([fail, lambda: 1, fail])
    assert isinstance(failed, Failure) and isinstance(again, Failure) and one == 1
    assert str(failed.error) == "no" and failed.error is not again.error
    threads.close()
