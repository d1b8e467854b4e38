"""Who is on a GPU before a launch: strangers, or this process's own family under other numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from drumline.hardware.records import GpuProcess, GpuSample

GIB = 1 << 30
HIDDEN_SHARE, HIDDEN_BYTES = 0.1, 2 * GIB
"""Memory in use from which on somebody must be there whom the driver does not show, in another container for instance:
both the share and the bytes. The driver itself and a small display keep less."""
_MOST_NAMED = 3


def occupants(sample: GpuSample) -> str | None:
    """Pure: who computes on a GPU besides us, in words; None: nobody, or the driver does not say."""
    if sample.processes is None:
        return None
    strangers = [each for each in sample.processes if "compute" in each.kind and not each.ours]
    if strangers:
        more = len(strangers) - _MOST_NAMED
        named = "; ".join(_in_words(each) for each in strangers[:_MOST_NAMED])
        return f"taken: {named}{f'; and {more} more' if more > 0 else ''}"
    used, whole = sample.memory_used_bytes, sample.gpu.memory_bytes
    if sample.processes or used is None or whole is None or used < max(HIDDEN_BYTES, HIDDEN_SHARE * whole):
        return None
    return f"taken: {used / GIB:.1f} GiB of it are in use, by nobody who can be seen here (another container?)"


def _in_words(process: GpuProcess) -> str:
    who = f" of {process.user}" if process.user else ""
    what = f" ({process.name})" if process.name else ""
    unseen = "" if who or what else ", which cannot be seen from here,"
    held = "" if process.memory_bytes is None else f" and holds {process.memory_bytes / GIB:.1f} GiB"
    return f"process {process.pid}{what}{who}{unseen} computes on it{held}"


def without_own(sample: GpuSample, num_own: int) -> GpuSample:
    """Pure: a sample whose unseen processes are ours as far as so many of ours are on the machine's GPUs.

    In a container an older driver tells the host's process numbers, or no processes at all: then a notebook's own
    process looks like a stranger's.
    """
    if sample.processes is None or num_own == 0:
        return sample
    if not sample.processes:
        return replace(sample, processes=None)
    found = []
    for process in sample.processes:
        if num_own > 0 and process.name is None and process.user is None:
            process, num_own = replace(process, ours=True), num_own - 1
        found.append(process)
    return replace(sample, processes=tuple(found))


def num_own_users(modules: Mapping[str, Any], root: Path = Path("/proc")) -> int:
    """How many of this process and those that it has started have a GPU's device file open.

    modules: those that are loaded; without torch nothing here uses a GPU itself.
    """
    own = psutil.Process()
    found = [own.pid] if "torch" in modules else []
    found += [child.pid for child in own.children(recursive=True)]
    return sum(_uses_a_gpu(root / str(pid) / "fd") for pid in found)


def _uses_a_gpu(descriptors: Path) -> bool:
    try:
        names = os.listdir(descriptors)  # noqa: PTH208 - one call, no objects
    except OSError:
        return False
    for name in names:
        try:
            target = os.readlink(descriptors / name)  # noqa: PTH115 - one call, no objects
        except OSError:
            continue
        if target.startswith("/dev/nvidia") and target.removeprefix("/dev/nvidia").isdecimal():
            return True
    return False
