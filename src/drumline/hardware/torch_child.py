"""What only torch knows, asked in a child process, so that a broken CUDA or a hung GPU cannot take this one along."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from drumline.hardware.children import NotEnded, finish
from drumline.hardware.host import nvidia_devices
from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Gpu, GpuSample, Snapshot

_ROOT = Path("/")
LIVE_FIELDS = tuple(item.name for item in fields(GpuSample) if item.name not in ("gpu", "time", "refused"))
"""What a sample may hold beside the GPU itself."""

# Each question stands alone: a build without CUDA lacks some of them.
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch

def ask(question):
    try:
        return question()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}

def devices():
    torch.cuda.init()
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        numbers = [getattr(facts, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        address = None if None in numbers else "{:04x}:{:02x}:{:02x}.0".format(*numbers)
        found.append({"name": facts.name, "uuid": str(getattr(facts, "uuid", "")), "memory_bytes": facts.total_memory,
                      "compute_capability": [facts.major, facts.minor], "pci_address": address,
                      "multiprocessors": facts.multi_processor_count})
    return found

cuda = torch.version.cuda is not None
distributed = torch.distributed.is_available()
print()
json.dump({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": ask(torch.backends.cudnn.version),
    "nccl": ask(lambda: ".".join(map(str, torch.cuda.nccl.version()))) if cuda else None,
    "backends": [name for name in ("nccl", "gloo", "mpi")
                 if distributed and getattr(torch.distributed, f"is_{name}_available")()],
    "arch_list": ask(torch.cuda.get_arch_list),
    "devices": ask(devices) if cuda else [],
}, sys.stdout)
"""


def ask_torch(limit_s: float = 120.0, script: str = SCRIPT) -> dict[str, Any]:
    """Torch's build, libraries and devices as torch sees them; {"error": why} where the child fails or is too slow."""
    return ask_child(["-c", script], limit_s)


def ask_child(arguments: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The last line that Python prints with these arguments, as JSON; {"error": why} where it fails or is too slow.

    environ: of the child; None: this process's own.
    """
    ended = finish([sys.executable, *arguments], limit_s, environ)
    if isinstance(ended, NotEnded):
        return {"error": f"torch {ended.why}"}
    if ended.status != 0:
        return {"error": f"torch does not start (exit status {ended.status}): {ended.last_words}"}
    try:
        # Only the last line: what a plugin prints while torch is imported comes before it.
        facts: dict[str, Any] = json.loads(ended.output.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"torch's child wrote no answer but {ended.output[-200:]!r}"}
    return facts


def read_with_torch(
    limit_s: float = 120.0, *, script: str = SCRIPT, root: Path = _ROOT, environ: Mapping[str, str] = os.environ
) -> Snapshot | Unavailable:
    """The machine's GPUs as torch names them: UUID, name, memory, capability, PCI address; no live values.

    The last source, for containers that have CUDA and none of the driver's tools. It costs the import of torch in a
    child, so it is asked only where there is a device file of an NVIDIA GPU. `root` holds dev/ and proc/ in tests.
    """
    if not nvidia_devices(root):
        return Unavailable("no device file of an NVIDIA GPU")
    hidden = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
    environ = {name: value for name, value in environ.items() if name not in hidden}
    # A snapshot is of the whole machine, in PCI order as NVML has it.
    facts = ask_child(["-c", script], limit_s, {**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    return snapshot_of(facts, time.time())


def snapshot_of(facts: Mapping[str, Any], now: float) -> Snapshot | Unavailable:
    """Pure: the answer of SCRIPT in the neutral form; why there is none where torch knows no GPU."""
    if "error" in facts:
        return Unavailable(str(facts["error"]))
    if facts["cuda"] is None:
        return Unavailable(f"torch {facts['version']} is built without CUDA")
    devices = facts["devices"]
    if isinstance(devices, dict):
        return Unavailable(f"CUDA does not start: {devices['error']}")
    if not devices:
        return Unavailable("torch sees no GPU")
    gpus = []
    problems = []
    for index, device in enumerate(devices):
        if not device["uuid"]:
            problems.append(f"GPU {index} left out: torch {facts['version']} does not tell its UUID")
            continue
        kind = "MIG" if " MIG " in device["name"] else "GPU"
        uuid = device["uuid"] if device["uuid"].startswith(("GPU-", "MIG-")) else f"{kind}-{device['uuid']}"
        capability = (int(device["compute_capability"][0]), int(device["compute_capability"][1]))
        address = device.get("pci_address")
        gpu = Gpu(uuid, device["name"], index, int(device["memory_bytes"]), capability, address)
        gpus.append(GpuSample(gpu, now, refused=dict.fromkeys(LIVE_FIELDS, "torch does not tell")))
    return Snapshot(now, f"torch {facts['version']}", tuple(gpus), tuple(problems))
