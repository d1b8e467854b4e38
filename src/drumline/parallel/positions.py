"""Where GPUs that are named by UUID stand in the numbering that CUDA gives this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from drumline.errors import HardwareError
from drumline.hardware.inventory import order_is_known
from drumline.hardware.records import Hardware


def shown_by_torch() -> list[str]:
    """UUIDs of the GPUs that CUDA shows, in its order; it starts CUDA, but takes memory of none of them."""
    found = (str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count()))
    return [f"GPU-{uuid.removeprefix('GPU-')}" for uuid in found]


def positions_of(
    uuids: Sequence[str], hardware: Hardware, shown: Callable[[], Sequence[str]] = shown_by_torch
) -> tuple[int, ...]:
    """The position of each of these GPUs among those that CUDA shows this process.

    As the inventory has them; CUDA itself is asked where its order is not known beforehand, as that of unlike GPUs.
    Raises HardwareError for one that is not among them.
    """
    order = [gpu.uuid for gpu in hardware.gpus] if order_is_known(hardware) else list(shown())
    missing = [uuid for uuid in uuids if uuid not in order]
    if missing:
        raise HardwareError(
            f"CUDA shows {', '.join(order) or 'no GPU'}, and this process is to use {', '.join(missing)}",
            "look at CUDA_VISIBLE_DEVICES; drumline doctor shows what torch sees",
        )
    return tuple(order.index(uuid) for uuid in uuids)
