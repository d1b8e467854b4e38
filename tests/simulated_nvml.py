"""A scripted stand-in for pynvml: simulated GPUs that answer, refuse, vanish and hang as a test says.

Whatever pynvml has and is not a function (constants, structures, NVMLError) is pynvml's own. A function that pynvml has
and no table here answers is refused as not supported; one that pynvml lacks is an AttributeError, as with an old
binding.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from ctypes import c_void_p, cast
from types import SimpleNamespace
from typing import Any

import pynvml

from tests.simulated_devices import (
    ANY_INSTANCE,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    TIMEOUT,
    UNINITIALISED,
    VERSION_MISMATCH,
    Handle,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedLink,
    SimulatedProcess,
    answers_of_a_gpu,
    memory,
    part,
    processes,
    whole,
)

__all__ = [
    "ANY_INSTANCE",
    "DRIVER_NOT_LOADED",
    "FUNCTION_NOT_FOUND",
    "GPU_IS_LOST",
    "INVALID_ARGUMENT",
    "LIBRARY_NOT_FOUND",
    "NOT_FOUND",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "RESET_REQUIRED",
    "TIMEOUT",
    "UNINITIALISED",
    "VERSION_MISMATCH",
    "Handle",
    "SimulatedGpu",
    "SimulatedInstance",
    "SimulatedLink",
    "SimulatedNvml",
    "SimulatedProcess",
]


class SimulatedNvml:
    """Answers NVML's questions for the GPUs it is given; `errors`, `values` and `hangs` are of global functions."""

    NVMLError = pynvml.NVMLError

    def __init__(self, gpus: Iterable[SimulatedGpu], errors: dict[str, int] | None = None) -> None:
        self.gpus = list(gpus)
        self.errors = errors or {}
        self.values: dict[str, Any] = {}
        self.hangs: set[str] = set()
        self.missing: set[str] = set()
        """Functions that the installed binding does not have."""
        self.initialised = 0
        self.calls: Counter[str] = Counter()
        """How often each function was asked."""
        self.hung = 0
        """Calls that wait for `release`."""
        self.process_names: dict[int, str] = {}
        self.levels: dict[frozenset[str], int] = {}
        """NVML_TOPOLOGY_* by the UUIDs of two GPUs; absent: 50, they share nothing but the machine."""
        self.peers: dict[frozenset[str], int] = {}
        """NVML_P2P_STATUS_* by the UUIDs of two GPUs; absent: 0, they reach each other."""
        self.samples: dict[int, Any] = {}
        """GPM samples that are allocated."""
        self.event_sets: list[SimpleNamespace] = []
        self._pid = 0
        self._generation = 0
        self._next_sample = 0
        self._released = threading.Event()
        self._events = threading.Condition()
        self._answers = self._table()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self.__dict__.get("missing", ()):
            raise AttributeError(name)
        real = getattr(pynvml, name, None)
        if name not in self._answers and not callable(real):
            if real is None:
                raise AttributeError(name)
            return real
        if isinstance(real, type):
            return real

        def call(*args: Any) -> Any:
            return self._call(name, args)

        return call

    def release(self) -> None:
        """Let every hung call, and those to come, go on."""
        self._released.set()

    def post_xid(self, uuid: str, code: int, gpu_instance: int = ANY_INSTANCE) -> None:
        """Deliver an XID of this GPU to the event sets that asked for XIDs of it."""
        with self._events:
            for events in self.event_sets:
                if events.types.get(uuid, 0) & pynvml.nvmlEventTypeXidCriticalError:
                    events.waiting.append((uuid, code, gpu_instance))
            self._events.notify_all()

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        self.calls[name] += 1
        self._wait_where_hung(self.hangs, name)
        self._refuse(self.errors.get(name))
        if not name.startswith("nvmlInit"):
            if not self.initialised:
                raise pynvml.NVMLError(UNINITIALISED)
            assert os.getpid() == self._pid, f"{name}: another process initialised this NVML"
        handle = self._handle_of(name, args)
        if handle is None:
            if name in self.values:
                value = self.values[name]
                return value(*args) if callable(value) else value
        else:
            assert handle.generation == self._generation, f"{name}: a handle from before the last nvmlInit"
            self._ask_device(name, handle)
            if name in handle.device.values:
                value = handle.device.values[name]
                return value(*args[1:]) if callable(value) else value
        if name not in self._answers:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        return self._answers[name](*args)

    def _ask_device(self, name: str, handle: Handle) -> None:
        for device in (handle.device, handle.parent):
            if device is None:
                continue
            device.asks += 1
            if device.lost_after is not None:
                if device.lost_after <= 0:
                    raise pynvml.NVMLError(GPU_IS_LOST)
                device.lost_after -= 1
        self._wait_where_hung(handle.device.hangs, name)
        self._refuse(handle.device.errors.get(name))

    def _wait_where_hung(self, hangs: set[str], name: str) -> None:
        if name in hangs and not self._released.is_set():
            self.hung += 1
            self._released.wait()
            self.hung -= 1

    @staticmethod
    def _refuse(code: int | None) -> None:
        if code is not None:
            raise pynvml.NVMLError(code)

    def _handle_of(self, name: str, args: tuple[Any, ...]) -> Handle | None:
        if name == "nvmlDeviceGetHandleByIndex":
            if not 0 <= args[0] < len(self.gpus):
                raise pynvml.NVMLError(INVALID_ARGUMENT)
            return self._handle(self.gpus[args[0]])
        return args[0] if args and isinstance(args[0], Handle) else None

    def _handle(self, device: SimulatedGpu | SimulatedInstance, parent: SimulatedGpu | None = None) -> Handle:
        return Handle(device, parent, self._generation)

    def _table(self) -> dict[str, Callable[..., Any]]:
        return {
            "nvmlInit": self._init,
            "nvmlInitWithFlags": lambda flags: self._init(),
            "nvmlShutdown": self._shutdown,
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlSystemGetNVMLVersion": lambda: "13.580.159.04",
            "nvmlSystemGetProcessName": self._process_name,
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self._handle(self.gpus[index]),
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetHandleByPciBusId": self._by_pci,
            **self._of_any_device(),
            **{name: whole(answer) for name, answer in answers_of_a_gpu().items()},
            "nvmlDeviceRegisterEvents": whole(self._register_events),
            "nvmlGpmSampleGet": whole(self._take_sample),
            "nvmlGpmMigSampleGet": whole(lambda gpu, instance, sample: self._take_sample(gpu, sample)),
            **self._of_two_gpus(),
            **self._of_mig(),
            "nvmlEventSetCreate": self._event_set,
            "nvmlEventSetWait": self._wait_for_event,
            "nvmlEventSetWait_v2": self._wait_for_event,
            "nvmlEventSetFree": self.event_sets.remove,
            "nvmlGpmSampleAlloc": self._new_sample,
            "nvmlGpmSampleFree": self._free_sample,
            "nvmlGpmMetricsGet": self._gpm_metrics,
        }

    def _of_any_device(self) -> dict[str, Callable[..., Any]]:
        return {
            "nvmlDeviceGetUUID": lambda handle: handle.device.uuid,
            "nvmlDeviceGetName": lambda handle: handle.device.name,
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (handle.parent or handle.device).capability,
            "nvmlDeviceGetPciInfo": self._pci_info,
            "nvmlDeviceGetPciInfo_v3": self._pci_info,
            "nvmlDeviceGetIndex": lambda handle: _place(self.gpus, handle.parent or handle.device),
            "nvmlDeviceGetMinorNumber": lambda handle: _place(self.gpus, handle.parent or handle.device),
            **{
                f"nvmlDeviceGet{kind}RunningProcesses{version}": processes(kind == "Graphics")
                for kind in ("Compute", "Graphics")
                for version in ("", "_v2", "_v3")
            },
        }

    def _of_two_gpus(self) -> dict[str, Callable[..., Any]]:
        def pair(one: Handle, other: Handle) -> frozenset[str]:
            return frozenset((one.device.uuid, other.device.uuid))

        return {
            "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: self.levels.get(pair(one, other), 50),
            "nvmlDeviceGetP2PStatus": lambda one, other, index: self.peers.get(pair(one, other), 0),
        }

    def _of_mig(self) -> dict[str, Callable[..., Any]]:
        return {
            "nvmlDeviceGetMigMode": whole(lambda gpu: [int(gpu.instances is not None), 0]),
            "nvmlDeviceGetMaxMigDeviceCount": whole(lambda gpu: 7),
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
            "nvmlDeviceIsMigDeviceHandle": lambda handle: int(isinstance(handle.device, SimulatedInstance)),
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: self._handle(handle.parent),
            "nvmlDeviceGetGpuInstanceId": part(lambda instance: instance.gpu_instance),
            "nvmlDeviceGetComputeInstanceId": part(lambda instance: instance.compute_instance),
        }

    def _init(self) -> None:
        if os.getpid() != self._pid:  # a forked child starts with a library that nobody initialised
            self.initialised = 0
            self.samples.clear()
            self._pid = os.getpid()
        if not self.initialised:
            self._generation += 1
        self.initialised += 1

    def _shutdown(self) -> None:
        self.initialised -= 1

    def _process_name(self, pid: int) -> str:
        if pid not in self.process_names:
            raise pynvml.NVMLError(NOT_FOUND)
        return self.process_names[pid]

    def _by_uuid(self, uuid: str) -> Handle:
        for gpu in self.gpus:
            for handle in (self._handle(gpu), *(self._handle(one, gpu) for one in (gpu.instances or {}).values())):
                if handle.device.uuid == uuid:
                    self._ask_device("nvmlDeviceGetHandleByUUID", handle)
                    return handle
        raise pynvml.NVMLError(NOT_FOUND)

    def _by_pci(self, address: str) -> Handle:
        for gpu in self.gpus:
            if self._pci(gpu).lower().endswith(address.lower()):
                handle = self._handle(gpu)
                self._ask_device("nvmlDeviceGetHandleByPciBusId", handle)
                return handle
        raise pynvml.NVMLError(NOT_FOUND)

    def _pci(self, gpu: SimulatedGpu) -> str:
        return gpu.pci or f"00000000:{0x1B + 0x10 * _place(self.gpus, gpu):02X}:00.0"

    def _pci_info(self, handle: Handle) -> Any:
        gpu = handle.parent or handle.device
        assert isinstance(gpu, SimulatedGpu)
        address = self._pci(gpu)
        domain, bus, rest = address.split(":")
        numbers = {"domain": int(domain, 16), "bus": int(bus, 16), "device": int(rest.split(".")[0], 16)}
        return SimpleNamespace(busId=address, busIdLegacy=address[4:], pciDeviceId=0x233010DE, **numbers)

    def _instance(self, handle: Handle, place: int) -> Handle:
        gpu = handle.device
        assert isinstance(gpu, SimulatedGpu)
        if place not in (gpu.instances or {}):
            raise pynvml.NVMLError(NOT_FOUND)
        return self._handle((gpu.instances or {})[place], gpu)

    def _event_set(self) -> SimpleNamespace:
        events = SimpleNamespace(types={}, waiting=[])
        self.event_sets.append(events)
        return events

    def _register_events(self, gpu: SimulatedGpu, types: int, events: SimpleNamespace) -> None:
        events.types[gpu.uuid] = events.types.get(gpu.uuid, 0) | types

    def _wait_for_event(self, events: SimpleNamespace, timeout_ms: int) -> Any:
        with self._events:
            if not self._events.wait_for(lambda: events.waiting, timeout_ms / 1000):
                raise pynvml.NVMLError(TIMEOUT)
            uuid, code, instance = events.waiting.pop(0)
        (gpu,) = (gpu for gpu in self.gpus if gpu.uuid == uuid)
        kind = pynvml.nvmlEventTypeXidCriticalError
        return SimpleNamespace(
            device=self._handle(gpu), eventType=kind, eventData=code, gpuInstanceId=instance, computeInstanceId=instance
        )

    def _new_sample(self) -> Any:
        self._next_sample += 1
        self.samples[self._next_sample] = None
        return cast(c_void_p(self._next_sample), pynvml.c_nvmlGpmSample_t)

    def _free_sample(self, sample: Any) -> None:
        del self.samples[_number(sample)]

    def _take_sample(self, gpu: SimulatedGpu, sample: Any) -> Any:
        if gpu.gpm is None:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        assert _number(sample) in self.samples, "a GPM sample that was freed"
        self.samples[_number(sample)] = (gpu.uuid, time.monotonic(), dict(gpu.gpm))
        return sample

    def _gpm_metrics(self, request: Any) -> Any:
        first, second = (self.samples.get(_number(sample)) for sample in (request.sample1, request.sample2))
        if first is None or second is None or first[0] != second[0] or request.version != 1:
            raise pynvml.NVMLError(INVALID_ARGUMENT)
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in second[2] else NOT_SUPPORTED
            metric.value = second[2].get(metric.metricId, 0.0)
        return request


def _number(sample: Any) -> int:
    return int(cast(sample, c_void_p).value or 0)


def _place(gpus: list[SimulatedGpu], gpu: Any) -> int:
    return next(place for place, one in enumerate(gpus) if one is gpu)
