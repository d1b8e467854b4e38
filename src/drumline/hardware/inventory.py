"""The machine as a run may use it: GPUs by UUID, CUDA_VISIBLE_DEVICES applied as CUDA applies it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.errors import HardwareError
from drumline.hardware.host import read_host
from drumline.hardware.nvml import NO_DRIVER, Device, Instance, Reading, Unavailable, load, read_gpus
from drumline.hardware.records import Gpu, Hardware, Snapshot
from drumline.hardware.sources import ask_others

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_OTHERS_LIMIT_S = 10.0


def detect(environ: Mapping[str, str] = os.environ, nvml: Any = None) -> Hardware:
    """The GPUs that a CUDA process with this environment would see, in CUDA's order, and the host.

    Starts no CUDA context and imports no torch. `nvml` stands in for pynvml in tests.
    """
    gpus, source = visible_gpus(read_machine(nvml), environ)
    return Hardware(gpus, read_host(), source)


def read_machine(nvml: Any = None) -> Reading:
    """All GPUs of the machine by NVML, or by nvidia-smi or torch's child where it does not answer; see `source`.

    A driver that hangs is not asked by another way. `nvml` stands in for pynvml in tests, and has no others beside it.
    """
    reading = read_gpus(nvml)
    if nvml is not None or reading.fault is None:
        return reading
    if reading.fault.code is None and not isinstance(load(), Unavailable):
        return reading  # NVML is there, and did not answer in time
    empty = Snapshot(time.time(), reading.source, no_gpu=reading.fault.code in NO_DRIVER)
    return reading_of(ask_others(empty, _OTHERS_LIMIT_S), reading.fault)


def reading_of(snapshot: Snapshot, fault: Unavailable | None = None) -> Reading:
    """Pure: GPUs of another source than NVML as NVML's reading has them; the fault stays where there are none."""
    gpus = [sample.gpu for sample in snapshot.gpus]
    whole = {gpu.uuid for gpu in gpus}
    devices = []
    for gpu in gpus:
        if gpu.parent in whole:
            continue
        # Their numbers are only in names that drivers before R470 gave them.
        parts = tuple(Instance(part, -1, -1) for part in gpus if part.parent == gpu.uuid)
        devices.append(Device(gpu, parts or None))
    found = bool(devices or snapshot.problems)
    return Reading(tuple(devices), snapshot.source, problems=snapshot.problems, fault=None if found else fault)


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


def named_gpus(
    hardware: Hardware, gpus: Sequence[str] | None, exclude: Sequence[str] = (), count: int | None = None
) -> tuple[Gpu, ...]:
    """Pure: the visible GPUs that a recipe names, in its order; all for None; without excluded ones, at most `count`.

    Names are UUIDs, beginnings of UUIDs that fit one GPU, or indexes as nvidia-smi shows them (`Gpu.index`). Raises
    HardwareError for a name in `gpus` that fits no visible GPU, is excluded or comes twice, for one that fits several,
    and for names and a count together. An excluded GPU need not be there: it may be hidden from this process.
    """
    excluded = [gpu for name in exclude for gpu in matching(hardware.gpus, name, "hardware.exclude")]
    if gpus is None:
        return tuple(gpu for gpu in hardware.gpus if gpu not in excluded)[:count]
    if not gpus:
        raise HardwareError("hardware.gpus names no GPU", "name at least one GPU, or set hardware.device=cpu")
    if count is not None:
        what = f"hardware.gpus names {len(gpus)}, and hardware.count asks for {count}"
        raise HardwareError(what, "say one of the two; hardware.exclude names those to leave alone")
    chosen: list[Gpu] = []
    for name in gpus:
        gpu = _named(hardware, name.strip())
        if gpu in chosen:
            raise HardwareError(f"hardware.gpus names GPU {gpu.index} ({gpu.uuid}) twice", "name each GPU once")
        if gpu in excluded:
            what = f"hardware.gpus names GPU {gpu.index} ({gpu.uuid}), and so does hardware.exclude"
            raise HardwareError(what, "name it in one of the two")
        chosen.append(gpu)
    return tuple(chosen)


def matching(gpus: Sequence[Gpu], name: str, setting: str) -> list[Gpu]:
    """Pure: the GPU that a name fits, with its MIG instances, or none. HardwareError where it fits several GPUs."""
    found = _fitting(gpus, name.strip())
    if len(found) > 1 and not name.strip().isdecimal():
        there = ", ".join(f"{gpu.index}: {gpu.uuid}" for gpu in found)
        raise HardwareError(f"{name!r} in {setting} fits several GPUs", f"say more of the UUID: {there}")
    parts = [gpu for gpu in gpus if gpu not in found and gpu.parent in {each.uuid for each in found}]
    return [*found, *parts]


def _named(hardware: Hardware, name: str) -> Gpu:
    found = _fitting(hardware.gpus, name)
    if len(found) == 1:
        return found[0]
    what = "fits several visible GPUs" if found else "is not a visible GPU"
    there = ", ".join(f"{gpu.index}: {gpu.uuid} ({gpu.name})" for gpu in hardware.gpus) or "no GPU"
    raise HardwareError(
        f"{name!r} in hardware.gpus {what} ({hardware.gpu_source})",
        f"choose from what this process may use: {there}",
    )


def _fitting(gpus: Sequence[Gpu], name: str) -> list[Gpu]:
    """Those whose index a name is, or whose UUID it begins."""
    if name.isdecimal():
        return [gpu for gpu in gpus if gpu.index == int(name)]
    start = name.lower()
    return [gpu for gpu in gpus if len(start) > len("GPU-") and gpu.uuid.lower().startswith(start)]


def order_is_known(hardware: Hardware, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `hardware.gpus` stand in CUDA's order for sure: unlike GPUs may, by an estimate of their speed, not."""
    alike = len({gpu.name for gpu in hardware.gpus}) < 2
    return alike or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or not _order_is_cudas(environ.get(_VARIABLE))


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
