"""What torch's allocator holds of each GPU, where this process has torch loaded already; nothing is imported here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drumline.hardware.records import Gpu


@dataclass(frozen=True)
class TorchMemory:
    """Bytes of one GPU that torch's allocator has in this process; peaks since the process began or reset them."""

    allocated_bytes: int
    """In tensors."""
    reserved_bytes: int
    """Taken from the driver, tensors included."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int


def torch_cuda() -> Any:
    """The module torch.cuda, where this process uses CUDA through it already; else None: asking would start CUDA."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    started = getattr(cuda, "is_initialized", None)
    return cuda if started is not None and started() else None


def torch_indexes(gpus: Iterable[Gpu]) -> dict[str, int]:
    """Torch's index of each of these GPUs by UUID, as torch itself tells it; empty before it uses CUDA."""
    cuda = torch_cuda()
    if cuda is None:
        return {}
    # Torch tells the UUID without the GPU- or MIG- before it.
    known = {str(cuda.get_device_properties(index).uuid): index for index in range(cuda.device_count())}
    return {gpu.uuid: known[bare] for gpu in gpus if (bare := gpu.uuid.partition("-")[2]) in known}


def read_torch_memory(index: int) -> TorchMemory | None:
    """What torch's allocator holds of its GPU of that index; None before torch uses CUDA."""
    cuda = torch_cuda()
    stats = {} if cuda is None else cuda.memory_stats(index)
    if not stats:
        return None
    names = ("allocated_bytes.all.current", "reserved_bytes.all.current")
    peaks = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")
    return TorchMemory(*(int(stats.get(name, 0)) for name in (*names, *peaks)))
