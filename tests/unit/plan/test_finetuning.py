"""The devices that a fine-tuning run would get, as far as settings say."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.config.finetuning import Machine
from drumline.config.load import read_overrides
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.plan.finetuning import machine_of

GIB = 1 << 30
HOST = Host(8, 64 * GIB, "here")


def gpus(*sizes: int | None) -> Hardware:
    """A machine with GPUs of so much memory."""
    found = [Gpu(f"GPU-{number}{'0' * 8}", "H100", number, size, (9, 0)) for number, size in enumerate(sizes)]
    return Hardware(tuple(found), HOST, "nvml")


@pytest.mark.parametrize(
    ("hardware", "overrides", "machine"),
    [
        (gpus(), [], Machine(1, 64 * GIB, False)),
        (gpus(), ["hardware.num_processes=3"], Machine(3, 64 * GIB, False)),
        (gpus(80, 40), [], Machine(2, 40, True)),
        (gpus(80, None), [], Machine(2, None, True)),
        (gpus(80, 40), ["hardware.device=cpu"], Machine(1, 64 * GIB, False)),
        (gpus(80, 40), ["hardware.count=1"], Machine(1, 80, True)),
        (gpus(80, 40), ["hardware.gpus=[1]"], Machine(1, 40, True)),
        (gpus(80, 40), ["parallel={kind: single}"], Machine(1, 40, True)),
        (gpus(80, 40), ["hardware=null"], Machine(2, 40, True)),
    ],
)
def test_devices_follow_from_machine_and_settings(hardware: Hardware, overrides: list[str], machine: Any) -> None:
    assert machine_of(hardware, read_overrides(overrides)) == machine
