"""Calls for several devices at once, each with the calling thread's grad mode, autocast and streams."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

import torch

T = TypeVar("T")


class Failure(NamedTuple):
    """What a call raised."""

    error: Exception


class ThreadState(NamedTuple):
    """What torch keeps a thread, and a new thread does not have."""

    grad: bool
    inference: bool
    autocast: dict[str, torch.dtype]
    """Device type -> type that it casts to, where it is on."""
    cache: bool
    streams: list[torch.cuda.Stream]
    """The current one of each GPU in use: what the caller has sent to it comes before what the threads will."""

    @classmethod
    def current(cls, devices: Sequence[torch.device]) -> ThreadState:
        """The calling thread's."""
        types = {"cpu", *(device.type for device in devices)}
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            {kind: torch.get_autocast_dtype(kind) for kind in types if torch.is_autocast_enabled(kind)},
            torch.is_autocast_cache_enabled(),
            [torch.cuda.current_stream(device) for device in devices if device.type == "cuda"],
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, this thread has it too."""
        with ExitStack() as stack:
            for stream in self.streams:
                stack.enter_context(torch.cuda.stream(stream))
            # In this order: to enter inference mode, or its absence, sets the grad mode.
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=self.cache))
            yield


class DeviceThreads:
    """One call a device: the first in the calling thread, the others in threads that persist.

    On the CPU they take turns in the calling thread instead, since all threads draw from one generator there.
    """

    def __init__(self, devices: Sequence[torch.device], *, at_once: bool | None = None) -> None:
        self._devices = list(devices)
        self._at_once = devices[0].type == "cuda" if at_once is None else at_once
        self._executor: ThreadPoolExecutor | None = None

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T | Failure]:
        """Make the calls, at most one a device and in the devices' order; all have ended when it returns."""
        here = [_caught(calls[0], self._devices[0])] if not self._at_once or len(calls) == 1 else []
        if here:
            return here + [_caught(call, device) for call, device in zip(calls[1:], self._devices[1:], strict=False)]
        if self._executor is None:
            self._executor = ThreadPoolExecutor(len(self._devices) - 1, thread_name_prefix="drumline-replica")
        state = ThreadState.current(self._devices)
        futures = [
            self._executor.submit(contextvars.copy_context().run, _in_thread, call, device, state)
            for call, device in zip(calls[1:], self._devices[1:], strict=False)
        ]
        try:
            first = _caught(calls[0], self._devices[0])
        finally:
            wait(futures)
        return [first, *(future.result() for future in futures)]

    def close(self) -> None:
        """End the threads; a later run starts new ones."""
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None


def _in_thread(call: Callable[[], T], device: torch.device, state: ThreadState) -> T | Failure:
    with state.entered():
        return _caught(call, device)


def _caught(call: Callable[[], T], device: torch.device) -> T | Failure:
    try:
        if device.type != "cuda":
            return call()
        with torch.cuda.device(device):
            return call()
    except Exception as error:
        return Failure(error)
