"""XIDs at the moment they happen, from NVML's event set, on a thread of its own."""

from __future__ import annotations

import ctypes
import threading
import time
from types import TracebackType
from typing import Any, Self

from drumline.hardware.nvml import Unavailable, ask, load
from drumline.hardware.xids import Xid, meaning

_XID_EVENT = 0x8  # nvml.h, nvmlEventTypeXidCriticalError
_NO_GPU = Unavailable("no GPU tells of XIDs")
# nvml.h, nvmlReturn_t. What no later try mends: no driver, no permission, no such function.
_TIMEOUT, _FOR_GOOD = 10, (3, 4, 9, 12, 13, None)


class XidListener:
    """Hears of XIDs from `start` to `stop`; a driver that tells of none leaves its reason in `fault`.

    The driver is waited for on a daemon thread with an NVML session of its own, so that one that hangs holds up
    nobody. `session_nvml` stands in for pynvml in tests. A forked child hears nothing; it needs a listener of its own.
    """

    def __init__(self, session_nvml: Any = None, *, wait_ms: int = 500, again_s: float = 10.0) -> None:
        """wait_ms: longest that `stop` waits for the driver. again_s: pause before a lost GPU's set is made anew."""
        self.fault: Unavailable | None = None
        """Why nothing is heard now; None while it listens."""
        self.listening = threading.Event()
        """Set while events arrive."""
        self._nvml = session_nvml
        self._wait_ms, self._again_s = wait_ms, again_s
        self._lock = threading.Lock()
        self._heard: list[Xid] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begin to listen; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="drumline-xids", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread; one that hangs in the driver is left behind, and ends with the process."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2 * self._wait_ms / 1000)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def drain(self) -> list[Xid]:
        """What was heard since the last call, oldest first."""
        with self._lock:
            heard, self._heard = self._heard, []
        return heard

    def _run(self) -> None:
        nvml = load(self._nvml)
        if isinstance(nvml, Unavailable):
            self.fault = nvml
            return
        started = ask(nvml, "nvmlInit")
        if isinstance(started, Unavailable):
            self.fault = started
            return
        try:
            while not self._stopping.is_set():
                self.fault = self._listen(nvml)
                if self.fault is None or self.fault.code in _FOR_GOOD or self._stopping.wait(self._again_s):
                    return
        finally:
            ask(nvml, "nvmlShutdown")

    def _listen(self, nvml: Any) -> Unavailable | None:
        """Hear events of the GPUs that are there now, until told to stop (None) or until the driver refuses."""
        events = ask(nvml, "nvmlEventSetCreate")
        if isinstance(events, Unavailable):
            return events
        try:
            registered = _register(nvml, events)
            if isinstance(registered, Unavailable):
                return registered
            self.fault = None
            self.listening.set()
            while not self._stopping.is_set():
                event = ask(nvml, "nvmlEventSetWait_v2", events, self._wait_ms)
                if not isinstance(event, Unavailable):
                    self._hear(nvml, event, registered)
                elif event.code != _TIMEOUT:
                    return event
            return None
        finally:
            self.listening.clear()
            ask(nvml, "nvmlEventSetFree", events)

    def _hear(self, nvml: Any, event: Any, registered: list[tuple[Any, str]]) -> None:
        if not event.eventType & _XID_EVENT:
            return
        code = int(event.eventData)
        uuid = _uuid(nvml, event.device, registered)
        with self._lock:
            self._heard.append(Xid(uuid, None, code, time.time(), meaning(code).title, "event"))


def _register(nvml: Any, events: Any) -> list[tuple[Any, str]] | Unavailable:
    """(handle, UUID) of the GPUs that will tell of XIDs, or why none will."""
    count = ask(nvml, "nvmlDeviceGetCount")
    if isinstance(count, Unavailable):
        return count
    registered: list[tuple[Any, str]] = []
    why = _NO_GPU
    for index in range(count):
        handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        uuid = handle if isinstance(handle, Unavailable) else ask(nvml, "nvmlDeviceGetUUID", handle)
        if isinstance(uuid, Unavailable):
            why = uuid
            continue
        answer = ask(nvml, "nvmlDeviceRegisterEvents", handle, _XID_EVENT, events)
        if isinstance(answer, Unavailable):
            why = answer
        else:
            registered.append((handle, str(uuid)))
    return registered or why


def _uuid(nvml: Any, device: Any, registered: list[tuple[Any, str]]) -> str | None:
    """The UUID of the GPU that an event names; one that is lost no longer tells it, so the handle's address does."""
    answer = ask(nvml, "nvmlDeviceGetUUID", device)
    if not isinstance(answer, Unavailable):
        return str(answer)
    return next((uuid for handle, uuid in registered if _address(handle) == _address(device)), None)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value if isinstance(handle, ctypes._Pointer) else id(handle)
