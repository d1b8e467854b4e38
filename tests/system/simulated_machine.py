"""The command `drumline` where two simulated H100s are: `python -m tests.system.simulated_machine FD ARGUMENTS`.

Each line of JSON that comes over the file descriptor changes the machine; see `change`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess

SOUND, SICK = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
REMAP_FAILED = 145
"""NVML_FI_DEV_REMAPPED_FAILURE."""


def machine() -> SimulatedNvml:
    """One GPU at work, and one of whose memory a row could not be replaced, with a stranger on it."""
    sound = SimulatedGpu(SOUND, memory_used_bytes=60 << 30, processes=[SimulatedProcess(os.getpid(), 59 << 30)])
    sick = SimulatedGpu(SICK, processes=[SimulatedProcess(4_000_000)])
    sick.fields[REMAP_FAILED] = 1
    for gpu in (sound, sick):
        gpu.values["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=97, memory=40)
        gpu.gpm = dict.fromkeys((2, 3, 5, 10, 11, 12, 13, 20, 21), 80.0)
    return SimulatedNvml([sound, sick])


def change(nvml: SimulatedNvml, wanted: dict[str, Any]) -> None:
    """temperature_c: of the sound GPU. xid: that the sick one reports. hang: whether questions are answered no more."""
    sound, sick = nvml.gpus
    if "temperature_c" in wanted:
        for function in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
            sound.values[function] = wanted["temperature_c"]
    if "xid" in wanted:
        nvml.post_xid(sick.uuid, wanted["xid"])
    if wanted.get("hang"):
        for gpu in nvml.gpus:
            gpu.hangs = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"}


def listen(nvml: SimulatedNvml, descriptor: int) -> None:
    """Take in changes until the other end is closed."""
    with os.fdopen(descriptor, encoding="utf-8") as lines:
        for line in lines:
            change(nvml, json.loads(line))


if __name__ == "__main__":
    nvml = machine()
    sys.modules["pynvml"] = nvml  # type: ignore[assignment]
    threading.Thread(target=listen, args=(nvml, int(sys.argv.pop(1))), daemon=True).start()
    from drumline.cli.app import main

    main()
