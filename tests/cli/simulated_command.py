"""The real command over a scripted NVML: `python simulated_command.py SCENARIO ARGUMENTS...`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess


def two_gpus() -> SimulatedNvml:
    """One at work, one with an uncorrectable error."""
    busy: dict[str, Any] = {
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=92, memory=40),
        "nvmlDeviceGetPowerUsage": 612_000,
        "nvmlDeviceGetTemperature": 61,
    }
    first = SimulatedGpu("GPU-aaaa", values=busy, memory_used_bytes=61 << 30, processes=[SimulatedProcess(4_000_000)])
    return SimulatedNvml([first, SimulatedGpu("GPU-bbbb", ecc={(1, 0): 2, (1, 1): 2})])


def hung() -> SimulatedNvml:
    """A driver that does not come back from the first look at a GPU."""
    nvml = SimulatedNvml([SimulatedGpu("GPU-aaaa")])
    nvml.hangs = {"nvmlDeviceGetCount"}
    return nvml


SCENARIOS = {"two_gpus": two_gpus, "hung": hung}

if __name__ == "__main__":
    scenario, *arguments = sys.argv[1:]
    sys.modules["pynvml"] = SCENARIOS[scenario]()  # type: ignore[assignment]
    sys.argv[1:] = arguments
    from drumline.cli.app import main

    main()
