"""One session with NVML for many looks: handles by UUID, fixed facts asked once, forks and lost GPUs noticed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from drumline.hardware.nvml import (
    FINAL,
    INIT_LIMIT_S,
    NO_DRIVER,
    Found,
    Unavailable,
    ask,
    driver_version,
    find_gpus,
    load,
    source_of,
)
from drumline.hardware.records import Gpu
from drumline.hardware.waiting import within as within

RECHECK_S = 60.0
"""How often it is looked anew which GPUs and MIG instances there are, and refused questions are asked again."""
CLOSE_LIMIT_S = 5.0
# NVML is started anew to find a lost GPU, which does nothing while others in this process have it open.
_COMES_BACK = "once it is reset, a program that is started anew sees it"


class Kept(Protocol):
    """What somebody keeps in a session from one look at a GPU to the next."""

    def drop(self, nvml: Any) -> None:
        """Give back to NVML what it holds of it; the GPU may be gone."""


Memory = TypeVar("Memory", bound=Kept)


class Session:
    """NVML from the first question to close(), for one thread at a time; close() is called once or more, or `with`.

    In a forked child it starts anew at its first use, and never touches the parent's handles: NVML's files are shared
    with the parent, so that giving something back here would take it from the parent.
    """

    def __init__(self, nvml: Any = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.fault: Unavailable | None = None
        """Why NVML as a whole does not answer; None where it does."""
        self.driver: str | None = None
        self.problems: tuple[str, ...] = ()
        """GPUs that are left out, each with its reason."""
        self.lost: dict[str, Unavailable] = {}
        """By UUID, GPUs that were here in this session and no longer answer."""
        self._places: dict[str, int] = {}
        self.clock = clock
        """Seconds by which looks are told apart."""
        self._stand_in = nvml
        self._open()

    def _open(self) -> None:
        self._pid: int | None = os.getpid()
        self._checked: float | None = None
        self._found: tuple[Found, ...] = ()
        self._fixed: dict[tuple[Any, ...], Any] = {}
        self._final: dict[tuple[Any, ...], Unavailable] = {}
        self._kept: dict[tuple[str, type[Any]], Any] = {}
        self.nvml = load(self._stand_in)
        self._start()

    def _start(self) -> None:
        started = self.nvml
        if not isinstance(started, Unavailable):
            started = within(INIT_LIMIT_S, lambda: ask(self.nvml, "nvmlInit"), self.nvml)
        self.fault = started if isinstance(started, Unavailable) else None
        self._initialised = self.fault is None
        self.driver = driver_version(self.nvml) if self._initialised else None

    @property
    def source(self) -> str:
        """Where records of this session come from, or why there are none: 'nvml 580.159', 'no NVIDIA driver', ..."""
        if self.fault is not None:
            return f"{source_of(self.driver)}: {self.fault.reason}" if self._initialised else self.fault.reason
        return source_of(self.driver) if self._found or self.problems else f"{source_of(self.driver)}: no GPU"

    @property
    def no_gpu(self) -> bool:
        """Whether this is simply a machine without GPU or driver."""
        if self.fault is not None:
            return self.fault.code in NO_DRIVER
        return self._checked is not None and not self._found and not self.problems

    def found(self) -> tuple[Found, ...]:
        """GPUs and MIG instances, each GPU before its instances; looked for anew each RECHECK_S."""
        self._here()
        now = self.clock()
        if self._pid is not None and (self._checked is None or now - self._checked >= RECHECK_S):
            self._find()
            self._checked = now
        return self._found

    def devices(self) -> list[tuple[Gpu, Any]]:
        """The same as pairs of a GPU (or MIG instance) and its handle."""
        return [(one.gpu, one.handle) for one in self.found()]

    def ask(self, function: str, *args: Any) -> Any:
        """One question as `hardware.nvml.ask` asks it; Unavailable where NVML as a whole does not answer."""
        self._here()
        return self.fault if self.fault is not None else ask(self.nvml, function, *args)

    def live(self, one: Found, function: str, *args: Any) -> Any:
        """What changes, asked now; what this GPU does not support is not asked again before the next recheck."""
        key = (one.gpu.uuid, function, *args)
        if key in self._final:
            return self._final[key]
        answer = self.ask(function, one.handle, *args)
        if isinstance(answer, Unavailable) and answer.code in FINAL:
            self._final[key] = answer
        return answer

    def fixed(self, one: Found, function: str, *args: Any) -> Any:
        """What hardly ever changes, asked once between two rechecks."""
        key = (one.gpu.uuid, function, *args)
        if key not in self._fixed:
            answer = self.live(one, function, *args)
            if isinstance(answer, Unavailable):
                return answer
            self._fixed[key] = answer
        return self._fixed[key]

    def kept(self, one: Found, kind: Callable[[], Memory]) -> Memory:
        """What `kind` keeps of this GPU in this session; made at the first call, dropped with GPU or session."""
        key: Any = (one.gpu.uuid, kind)
        found: Memory = self._kept.get(key) or self._kept.setdefault(key, kind())
        return found

    def lose(self, one: Found, why: Unavailable) -> None:
        """Leave out a GPU that answered no more, with its MIG instances; the next recheck looks whether it is back."""
        uuid = one.gpu.parent or one.gpu.uuid
        if uuid in self.lost:
            return
        self.lost[uuid] = why
        self._places[uuid] = one.gpu.index
        self._tell_lost()
        self._found = tuple(other for other in self._found if uuid not in (other.gpu.uuid, other.gpu.parent))
        self._drop_absent()

    def close(self) -> None:
        """Give everything back to NVML. Returns in time though the driver hangs; devices() is empty from then on."""
        if self._pid == os.getpid() and self._initialised:
            within(CLOSE_LIMIT_S, self._stop, self.nvml)
        self._pid, self._found, self._initialised = None, (), False
        self.fault = Unavailable("the session is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _here(self) -> None:
        if self._pid is not None and self._pid != os.getpid():
            self.lost, self.problems = {}, ()
            self._open()

    def _stop(self) -> None:
        for item in self._kept.values():
            item.drop(self.nvml)
        self._kept.clear()
        ask(self.nvml, "nvmlShutdown")

    def _find(self) -> None:
        """Which GPUs there are now; NVML is started anew where one is missing, for it does not see one come back."""
        before = {one.gpu.uuid: one for one in self._found}
        if self.lost and self._initialised:
            self._stop()
            self._initialised = False
        if not self._initialised:
            self._start()
        self._fixed.clear()
        self._final.clear()
        answer = find_gpus(self.nvml) if self._initialised else self.fault
        if answer is None or isinstance(answer, Unavailable):
            self.fault, self._found, self.problems = answer, (), ()
        else:
            self.fault, self._found, self.problems = None, tuple(answer[0]), tuple(answer[1])
        self._remember_lost(before)
        self._drop_absent()

    def _remember_lost(self, before: dict[str, Found]) -> None:
        here = {one.gpu.uuid for one in self._found}
        for uuid in here & set(self.lost):
            del self.lost[uuid]
        for uuid, one in before.items():
            if uuid not in here and one.gpu.parent is None:
                self.lost.setdefault(uuid, self.fault or Unavailable("it is no longer there"))
                self._places[uuid] = one.gpu.index
        self._tell_lost()

    def _tell_lost(self) -> None:
        for uuid, why in self.lost.items():
            place = f"GPU {self._places[uuid]}"
            told = [each for each in self.problems if each.startswith((f"{place} left", f"{place} ({uuid})"))]
            others = tuple(each for each in self.problems if each not in told)
            first = told[0] if told else f"{place} ({uuid}) left out: {why.reason}"
            self.problems = (*others, first if first.endswith(_COMES_BACK) else f"{first}; {_COMES_BACK}")

    def _drop_absent(self) -> None:
        here = {one.gpu.uuid for one in self._found}
        for key in [key for key in self._kept if key[0] not in here]:
            self._kept.pop(key).drop(self.nvml)


def open_session(nvml: Any = None) -> Session:
    """A session to use in a `with` statement; its `fault` says where NVML does not answer."""
    return Session(nvml)
