"""A scripted stand-in for pynvml: simulated GPUs that answer, and refuse, as a test says. No real device is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED = 3, 4, 6, 9
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH = 12, 13, 15, 18


@dataclass
class SimulatedInstance:
    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_bytes: int = 5 << 30
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class SimulatedGpu:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 << 30
    capability: tuple[int, int] = (9, 0)
    instances: dict[int, SimulatedInstance] | None = None
    """MIG instances by place; None for MIG off."""
    errors: dict[str, int] = field(default_factory=dict)
    """NVML's return code by the name of the function that gives it for this GPU."""


class SimulatedNvml:
    """Answers the questions of `hardware.nvml` for the GPUs it is given; `errors` holds codes of global functions."""

    NVMLError = pynvml.NVMLError

    def __init__(self, gpus: list[SimulatedGpu], errors: dict[str, int] | None = None) -> None:
        self.gpus = gpus
        self.errors = errors or {}
        self.initialised = 0

    def __getattr__(self, function: str) -> Any:
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": self._init,
            "nvmlShutdown": self._shutdown,
            "nvmlSystemGetDriverVersion": lambda: "580.159.04",
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self.gpus[index],
            "nvmlDeviceGetUUID": lambda device: device.uuid,
            "nvmlDeviceGetName": lambda device: device.name,
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(total=device.memory_bytes),
            "nvmlDeviceGetCudaComputeCapability": lambda device: device.capability,
            "nvmlDeviceGetMigMode": lambda device: [int(device.instances is not None), 0],
            "nvmlDeviceGetMaxMigDeviceCount": lambda device: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
            "nvmlDeviceGetGpuInstanceId": lambda device: device.gpu_instance,
            "nvmlDeviceGetComputeInstanceId": lambda device: device.compute_instance,
        }
        if function not in answers:
            raise AttributeError(function)

        def call(*args: Any) -> Any:
            if function in self.errors:
                raise pynvml.NVMLError(self.errors[function])
            if function != "nvmlInit" and not self.initialised:
                raise pynvml.NVMLError(1)
            device = self.gpus[args[0]] if function == "nvmlDeviceGetHandleByIndex" else args[0] if args else None
            errors: dict[str, int] = getattr(device, "errors", {})
            if function in errors:
                raise pynvml.NVMLError(errors[function])
            return answers[function](*args)

        return call

    def _init(self) -> None:
        self.initialised += 1

    def _shutdown(self) -> None:
        self.initialised -= 1

    def _instance(self, gpu: SimulatedGpu, place: int) -> SimulatedInstance:
        if place not in (gpu.instances or {}):
            raise pynvml.NVMLError(NOT_FOUND)
        return (gpu.instances or {})[place]
