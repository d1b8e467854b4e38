"""The machine as a run may use it: GPUs by UUID, CUDA_VISIBLE_DEVICES applied as CUDA applies it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.errors import HardwareError
from drumline.hardware.host import read_host
from drumline.hardware.nvml import Device, Instance, Reading, read_gpus
from drumline.hardware.records import Gpu, Hardware

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def detect(environ: Mapping[str, str] = os.environ, nvml: Any = None) -> Hardware:
    """The GPUs that a CUDA process with this environment would see, in CUDA's order, and the host.

    Starts no CUDA context and imports no torch. `nvml` stands in for pynvml in tests.
    """
    reading = read_gpus(nvml)
    gpus, source = visible_gpus(reading, environ)
    return Hardware(gpus, read_host(), source)


def visible_gpus(reading: Reading, environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str]:
    """Pure: which of the machine's GPUs CUDA shows under this environment, in its order, and where that comes from.

    Rules of the CUDA C++ Programming Guide (environment variables) and of the MIG user guide (CUDA device
    enumeration): identifiers are indexes or (abbreviated) UUIDs; the list ends before the first invalid one; one that
    is named twice leaves nothing; a process sees one MIG instance at most, and beside it no other GPU.
    """
    notes = list(reading.problems)
    text = environ.get(_VARIABLE)
    if text is None or not reading.devices:
        targets: tuple[Device | Instance, ...] = reading.devices
    else:
        targets = _apply(text, reading.devices, notes)
    unlike = len({device.gpu.name for device in reading.devices}) > 1
    if unlike and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and _order_is_cudas(text):
        # FASTEST_FIRST, CUDA's default, sorts unlike GPUs by an estimate of speed that NVML does not know.
        notes.append("unlike GPUs taken in PCI order, which CUDA follows only under CUDA_DEVICE_ORDER=PCI_BUS_ID")
    gpus = _expand_mig(targets, notes)
    return gpus, "; ".join([reading.source, *notes])


def select(hardware: Hardware, gpus: Sequence[str] | None) -> tuple[Gpu, ...]:
    """Pure: the visible GPUs that a recipe names, in its order; all of them for None.

    Names are UUIDs, beginnings of UUIDs that fit one GPU, or indexes as nvidia-smi shows them (`Gpu.index`). Raises
    HardwareError for a name that fits no visible GPU or several, and for a GPU named twice.
    """
    if gpus is None:
        return hardware.gpus
    if not gpus:
        raise HardwareError("hardware.gpus names no GPU", "name at least one GPU, or set hardware.device=cpu")
    chosen: list[Gpu] = []
    for name in gpus:
        gpu = _named(hardware, name.strip())
        if gpu in chosen:
            raise HardwareError(f"hardware.gpus names GPU {gpu.index} ({gpu.uuid}) twice", "name each GPU once")
        chosen.append(gpu)
    return tuple(chosen)


def _named(hardware: Hardware, name: str) -> Gpu:
    if name.isdecimal():
        found = [gpu for gpu in hardware.gpus if gpu.index == int(name)]
    else:
        start = name.lower()
        whole = len(start) > len("GPU-")
        found = [gpu for gpu in hardware.gpus if whole and gpu.uuid.lower().startswith(start)]
    if len(found) == 1:
        return found[0]
    what = "fits several visible GPUs" if found else "is not a visible GPU"
    there = ", ".join(f"{gpu.index}: {gpu.uuid} ({gpu.name})" for gpu in hardware.gpus) or "no GPU"
    raise HardwareError(
        f"{name!r} in hardware.gpus {what} ({hardware.gpu_source})",
        f"choose from what this process may use: {there}",
    )


def _order_is_cudas(text: str | None) -> bool:
    """Whether positions in CUDA's own numbering matter: without the variable, or where it starts with an index."""
    return text is None or _index(text) is not None


def _index(token: str) -> int | None:
    """The number a token starts with, as C's strtol reads it ('1gpu' is 1); None where it starts with none."""
    match = re.match(r"\s*([+-]?[0-9]+)", token)
    return int(match.group(1)) if match else None


def _apply(text: str, devices: Sequence[Device], notes: list[str]) -> tuple[Device | Instance, ...]:
    if not text.strip():
        notes.append(f"{_VARIABLE} is empty")
        return ()
    chosen: list[Device | Instance] = []
    by_index = _index(text) is not None
    for token in text.split(","):
        target = _by_index(token, devices) if by_index else _by_uuid(token, devices)
        if target is None:
            after = f"after {len(chosen)} GPUs" if chosen else "before any GPU"
            notes.append(f"{_VARIABLE} ends {after}, at {token.strip()!r}, which names none")
            break
        if target in chosen:
            notes.append(f"{_VARIABLE} names {token.strip()!r} twice, so CUDA shows no GPU")
            return ()
        chosen.append(target)
    else:
        if len(chosen) < len(devices):
            notes.append(f"{len(chosen)} of {len(devices)} GPUs by {_VARIABLE}")
    return tuple(chosen)


def _by_index(token: str, devices: Sequence[Device]) -> Device | None:
    index = _index(token)
    return devices[index] if index is not None and 0 <= index < len(devices) else None


def _by_uuid(token: str, devices: Sequence[Device]) -> Device | Instance | None:
    """A GPU or MIG instance by (the beginning of) its UUID; an ambiguous beginning names none."""
    # Seen on driver 580: hexadecimal digits in either case, at least one, and what follows them is passed over.
    digits = re.match(r"(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]*", token)
    start = "" if digits is None else digits.group().lower()
    found: list[Device | Instance] = []
    for device in devices:
        if start and device.gpu.uuid.lower().startswith(start):
            found.append(device)
        for instance in device.instances or ():
            # Drivers before R470 named an instance by its GPU's UUID and two numbers.
            old = f"MIG-{device.gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
            if token.strip() == old or (start and instance.gpu.uuid.lower().startswith(start)):
                found.append(instance)
    return found[0] if len(found) == 1 else None


def _expand_mig(targets: Sequence[Device | Instance], notes: list[str]) -> tuple[Gpu, ...]:
    """What CUDA makes of GPUs with MIG on: the first instance alone, and no GPU beside it."""
    gpus: list[Gpu] = []
    instances: list[Gpu] = []
    for target in targets:
        if isinstance(target, Instance):
            instances.append(target.gpu)
        elif target.instances is None:
            gpus.append(target.gpu)
        elif target.instances:
            instances.extend(instance.gpu for instance in target.instances)
        else:
            notes.append(f"GPU {target.gpu.index} left out: MIG is on and it has no instance")
    if not instances:
        return tuple(gpus)
    if gpus or len(instances) > 1:
        notes.append("CUDA shows a process one MIG instance and no GPU beside it")
    return (instances[0],)
