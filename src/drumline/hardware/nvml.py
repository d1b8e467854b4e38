"""The one guarded NVML room: whatever the driver refuses comes back as a value, never as an exception."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from drumline.hardware.records import Gpu
from drumline.hardware.waiting import Unavailable as Unavailable
from drumline.hardware.waiting import within

INIT_LIMIT_S = 30.0
"""Longest wait for the driver to start, and for a first look: it may have to bring up GPUs that nobody keeps awake."""
NO_DRIVER = (9, 12)
"""Codes of a machine without GPU or driver, on which nothing is wrong."""
# NVML's return codes (nvml.h, nvmlReturn_t) in words for people; others are shown by number.
_FUNCTION_NOT_FOUND, _LOST, _RESET_REQUIRED = 13, 15, 16
GONE = (_LOST, _RESET_REQUIRED)
"""Codes after which a GPU answers no question any more."""
FINAL = (2, 3, 13, 26)
"""Codes of refusals that will not change soon: invalid argument (MIG instances), not supported, function not found,
the driver no longer answers this."""
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
    _FUNCTION_NOT_FOUND: "the driver is too old for this question",
    14: "the GPU's infoROM is corrupted",
    _LOST: "the GPU is lost: it fell off the bus",
    _RESET_REQUIRED: "the GPU needs a reset",
    17: "the GPU is blocked by the operating system",
    18: "the driver and its libraries have different versions: it was updated and not reloaded",
    20: "the driver is out of memory",
    25: "the driver and nvidia-ml-py do not fit together here",
    26: "the driver no longer answers this question",
    27: "the driver is not ready",
    28: "the GPU is not there",
}


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
class Found:
    """A GPU or MIG instance with the handle by which NVML is asked about it, good until NVML is shut down."""

    gpu: Gpu
    handle: Any
    parent: Any = None
    """Handle of the GPU that a MIG instance is a part of."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    mig: bool = False
    """Whether it is a GPU with MIG on."""


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
        return refusal(int(error.value))
    except nvml.NVMLLibraryMismatchError:  # what pynvml makes of a missing function where there are several versions
        return refusal(_FUNCTION_NOT_FOUND)
    except UnicodeDecodeError:
        return Unavailable("the driver answered with bytes that are no text")


def refusal(code: int) -> Unavailable:
    """NVML's return code as a value, in words."""
    return Unavailable(_REASONS.get(code, f"NVML error {code}"), code)


def load(nvml: Any = None) -> Any:
    """The pynvml module, or what stands in for it in tests; Unavailable where it is not installed."""
    if nvml is not None:
        return nvml
    try:
        import pynvml
    except ImportError:
        return Unavailable("the package nvidia-ml-py is not installed")
    return pynvml


def read_gpus(nvml: Any = None) -> Reading:
    """All GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says. `nvml` stands in for pynvml in tests.

    NVML is initialised and shut down within the call, so that a forked child never inherits a handle. A driver that
    does not answer within INIT_LIMIT_S is a fault like any other.
    """
    loaded = load(nvml)
    answer = loaded if isinstance(loaded, Unavailable) else within(INIT_LIMIT_S, lambda: _read(loaded), loaded)
    return answer if isinstance(answer, Reading) else Reading((), answer.reason, fault=answer)


def source_of(driver: str | None) -> str:
    """How records name NVML as their source."""
    return f"nvml {driver}" if driver else "nvml"


def driver_version(nvml: Any) -> str | None:
    """The driver's version; None where it does not say."""
    driver = ask(nvml, "nvmlSystemGetDriverVersion")
    return None if isinstance(driver, Unavailable) else str(driver)


def find_gpus(nvml: Any) -> tuple[list[Found], list[str]] | Unavailable:
    """GPUs and MIG instances of an initialised NVML, each GPU before its instances, and why others are left out."""
    count = ask(nvml, "nvmlDeviceGetCount")
    if isinstance(count, Unavailable):
        return count
    found: list[Found] = []
    problems: list[str] = []
    for index in range(count):
        device = _find_device(nvml, index)
        if isinstance(device, Found):
            found += [device, *_find_instances(nvml, device)]
        else:
            problems.append(f"GPU {index} left out: {device.reason}")
    return found, problems


def pci_address(text: str) -> str:
    """NVML's way to write an address (00000000:3B:00.0) as the kernel writes it (0000:3b:00.0)."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _read(nvml: Any) -> Reading:
    started = ask(nvml, "nvmlInit")
    if isinstance(started, Unavailable):
        return Reading((), started.reason, fault=started)
    try:
        return _read_initialised(nvml)
    finally:
        ask(nvml, "nvmlShutdown")


def _read_initialised(nvml: Any) -> Reading:
    driver = driver_version(nvml)
    source = source_of(driver)
    answer = find_gpus(nvml)
    if isinstance(answer, Unavailable):
        return Reading((), f"{source}: {answer.reason}", driver, fault=answer)
    found, problems = answer
    devices = tuple(
        Device(one.gpu, tuple(_instances_of(one, found)) if one.mig else None) for one in found if one.parent is None
    )
    source = source if devices or problems else f"{source}: no GPU"
    return Reading(devices, source, driver, tuple(problems))


def _instances_of(device: Found, found: list[Found]) -> Iterator[Instance]:
    for one in found:
        if one.parent is device.handle and one.gpu_instance is not None and one.compute_instance is not None:
            yield Instance(one.gpu, one.gpu_instance, one.compute_instance)


def _find_device(nvml: Any, index: int) -> Found | Unavailable:
    """One GPU, or why it cannot be used: without a UUID it cannot be named, and so not be handed to a worker."""
    handle = ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, Unavailable):
        return handle
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    if not isinstance(capability, Unavailable):
        capability = (int(capability[0]), int(capability[1]))
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    address = None if isinstance(pci, Unavailable) else pci_address(str(pci.busId))
    known = None if isinstance(capability, Unavailable) else capability
    shell = Gpu("", "unknown", index, None, known, address)
    gpu = _named(nvml, handle, shell)
    if isinstance(gpu, Unavailable):
        return gpu
    for answer in (capability, pci):
        if isinstance(answer, Unavailable) and answer.code in GONE:
            return answer
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)
    return Found(gpu, handle, mig=not isinstance(mode, Unavailable) and bool(mode[0]))


def _named(nvml: Any, handle: Any, shell: Gpu) -> Gpu | Unavailable:
    uuid = ask(nvml, "nvmlDeviceGetUUID", handle)
    if isinstance(uuid, Unavailable):
        return uuid
    name = ask(nvml, "nvmlDeviceGetName", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    # A GPU that is lost between two questions answers the later ones with errors; half a GPU is not handed on.
    for answer in (name, memory):
        if isinstance(answer, Unavailable) and answer.code in GONE:
            return answer
    return replace(
        shell,
        uuid=str(uuid),
        name="unknown" if isinstance(name, Unavailable) else str(name),
        memory_bytes=None if isinstance(memory, Unavailable) else int(memory.total),
    )


def _find_instances(nvml: Any, device: Found) -> Iterator[Found]:
    most = ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", device.handle) if device.mig else 0
    shell = replace(device.gpu, parent=device.gpu.uuid)
    for place in range(0 if isinstance(most, Unavailable) else most):
        handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", device.handle, place)
        if isinstance(handle, Unavailable):
            continue  # places without an instance answer "not found"
        gpu = _named(nvml, handle, shell)
        ids = [ask(nvml, f"nvmlDeviceGet{kind}InstanceId", handle) for kind in ("Gpu", "Compute")]
        if isinstance(gpu, Gpu) and not any(isinstance(id_, Unavailable) for id_ in ids):
            yield Found(gpu, handle, device.handle, int(ids[0]), int(ids[1]))
