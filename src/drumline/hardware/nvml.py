"""The one guarded NVML room: whatever the driver refuses comes back as a value, never as an exception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drumline.hardware.records import Gpu

# NVML's return codes (nvml.h, nvmlReturn_t) in words for people; others are shown by number.
_LOST, _RESET_REQUIRED = 15, 16
_REASONS = {
    1: "NVML is not initialised",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    8: "the GPU's power cables are not attached",
    9: "no NVIDIA driver is loaded",
    10: "the driver did not answer in time",
    11: "the kernel reports an interrupt problem with a GPU",
    12: "no NVIDIA driver (libnvidia-ml is not installed)",
    13: "the driver is too old for this question",
    14: "the GPU's infoROM is corrupted",
    _LOST: "the GPU is lost: it fell off the bus",
    _RESET_REQUIRED: "the GPU needs a reset",
    17: "the GPU is blocked by the operating system",
    18: "the driver and its libraries have different versions: it was updated and not reloaded",
    20: "the driver is out of memory",
}


@dataclass(frozen=True)
class Unavailable:
    """Why NVML gave no value."""

    reason: str
    code: int | None = None
    """NVML's return code; None where the question never reached NVML."""


@dataclass(frozen=True)
class Instance:
    """One MIG compute instance, which CUDA takes for a GPU of its own."""

    gpu: Gpu
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True)
class Device:
    """One physical GPU; `instances` is None where MIG is off, and may be empty where it is on."""

    gpu: Gpu
    instances: tuple[Instance, ...] | None = None


@dataclass(frozen=True)
class Reading:
    """What NVML told in one go; empty `devices` with the reason in `source` where it told nothing."""

    devices: tuple[Device, ...]
    """In NVML's order, which is PCI order."""
    source: str
    driver: str | None = None
    problems: tuple[str, ...] = ()
    """GPUs that were left out, each with its reason."""
    fault: Unavailable | None = None
    """Why NVML as a whole did not answer."""


def ask(nvml: Any, function: str, *args: Any) -> Any:
    """Call one NVML function by name; returns its value, or Unavailable where NVML or its Python binding refuses."""
    call = getattr(nvml, function, None)
    if call is None:
        return Unavailable("the installed nvidia-ml-py is too old for this question")
    try:
        return call(*args)
    except nvml.NVMLError as error:
        code = int(error.value)
        return Unavailable(_REASONS.get(code, f"NVML error {code}"), code)


def read_gpus(nvml: Any = None) -> Reading:
    """All GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says. `nvml` stands in for pynvml in tests.

    NVML is initialised and shut down within the call, so that a forked child never inherits a handle.
    """
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            fault = Unavailable("the package nvidia-ml-py is not installed")
            return Reading((), fault.reason, fault=fault)
        nvml = pynvml
    started = ask(nvml, "nvmlInit")
    if isinstance(started, Unavailable):
        return Reading((), started.reason, fault=started)
    try:
        return _read_initialised(nvml)
    finally:
        ask(nvml, "nvmlShutdown")


def _read_initialised(nvml: Any) -> Reading:
    driver = ask(nvml, "nvmlSystemGetDriverVersion")
    version = None if isinstance(driver, Unavailable) else str(driver)
    source = f"nvml {version}" if version else "nvml"
    count = ask(nvml, "nvmlDeviceGetCount")
    if isinstance(count, Unavailable):
        return Reading((), f"{source}: {count.reason}", version, fault=count)
    devices: list[Device] = []
    problems: list[str] = []
    for index in range(count):
        device = _read_device(nvml, index)
        if isinstance(device, Device):
            devices.append(device)
        else:
            problems.append(f"GPU {index} left out: {device.reason}")
    return Reading(tuple(devices), source if count else f"{source}: no GPU", version, tuple(problems))


def _read_device(nvml: Any, index: int) -> Device | Unavailable:
    """One GPU, or why it cannot be used: without a UUID it cannot be named, and so not be handed to a worker."""
    handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, Unavailable):
        return handle
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if not isinstance(capability, Unavailable):
        capability = (int(capability[0]), int(capability[1]))
    gpu = _read_gpu(nvml, handle, index, capability)
    if isinstance(gpu, Unavailable):
        return gpu
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)
    if isinstance(mode, Unavailable) or not mode[0]:
        return Device(gpu)
    return Device(gpu, _read_instances(nvml, handle, index, capability))


def _read_gpu(nvml: Any, handle: Any, index: int, capability: Any) -> Gpu | Unavailable:
    uuid = ask(nvml, "nvmlDeviceGetUUID", handle)
    if isinstance(uuid, Unavailable):
        return uuid
    name = ask(nvml, "nvmlDeviceGetName", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    # A GPU that is lost between two questions answers the later ones with errors; half a GPU is not handed on.
    for answer in (name, memory, capability):
        if isinstance(answer, Unavailable) and answer.code in (_LOST, _RESET_REQUIRED):
            return answer
    return Gpu(
        uuid=str(uuid),
        name="unknown" if isinstance(name, Unavailable) else str(name),
        index=index,
        memory_bytes=None if isinstance(memory, Unavailable) else int(memory.total),
        compute_capability=None if isinstance(capability, Unavailable) else capability,
    )


def _read_instances(nvml: Any, parent: Any, index: int, capability: Any) -> tuple[Instance, ...]:
    most = ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", parent)
    instances: list[Instance] = []
    for place in range(0 if isinstance(most, Unavailable) else most):
        handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", parent, place)
        if isinstance(handle, Unavailable):
            continue  # places without an instance answer "not found"
        gpu = _read_gpu(nvml, handle, index, capability)
        ids = [ask(nvml, f"nvmlDeviceGet{kind}InstanceId", handle) for kind in ("Gpu", "Compute")]
        if isinstance(gpu, Gpu) and not any(isinstance(id_, Unavailable) for id_ in ids):
            instances.append(Instance(gpu, int(ids[0]), int(ids[1])))
    return tuple(instances)
