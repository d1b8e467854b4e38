"""Who else can be asked about GPUs where NVML cannot: `nvidia-smi`, then torch in a child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from drumline.hardware.host import nvidia_devices
from drumline.hardware.nvidia_smi import read_with_smi
from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Snapshot
from drumline.hardware.torch_child import read_with_torch

Source = Callable[[], Snapshot | Unavailable]


def ask_others(
    empty: Snapshot,
    limit_s: float,
    *,
    devices: Callable[[], bool] = nvidia_devices,
    sources: Sequence[Source] | None = None,
) -> Snapshot:
    """What the first of the other sources tells, with NVML's reason in its `source`; `empty` where none tells more.

    limit_s is for nvidia-smi; torch's child has a longer one of its own, for it imports torch. A machine on which not
    even a device file speaks of a GPU is not asked again. The rest stands in for the machine in tests.
    """
    if empty.no_gpu and not devices():
        return empty
    why = empty.source
    for source in sources or (lambda: read_with_smi(limit_s), read_with_torch):
        answer = source()
        if isinstance(answer, Snapshot) and (answer.gpus or answer.problems):
            return replace(answer, source=f"{answer.source} ({empty.source})")
        why = f"{why}; {answer.reason if isinstance(answer, Unavailable) else answer.source}"
    return replace(empty, source=why, no_gpu=False)
