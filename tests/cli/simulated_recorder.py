"""`drumline.monitor.record` over two simulated GPUs, as a program of its own.

FAULT in the environment: `xid` posts XID 79 for the first GPU after a second look; `hang` lets the driver hang then.
"""

from __future__ import annotations

import logging
import os
import sys

from drumline.hardware.records import Snapshot
from drumline.hardware.sample import take
from drumline.hardware.session import Session
from drumline.monitor import record, recording
from drumline.monitor.health_watch import HealthWatch
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml


class Machine:
    """Its GPUs, and what happens to them."""

    def __init__(self, fault: str) -> None:
        self.nvml = SimulatedNvml([SimulatedGpu("GPU-0"), SimulatedGpu("GPU-1")])
        self.session = Session(self.nvml)
        self.fault = fault
        self.looks = 0

    def look(self) -> Snapshot:
        self.looks += 1
        if self.looks == 3 and self.fault == "hang":
            self.nvml.hangs = {"nvmlDeviceGetMemoryInfo"}
        if self.looks == 3 and self.fault == "xid":
            self.nvml.post_xid("GPU-0", 79)
        return take(self.session)


def main() -> int:
    recording.HEALTH_EVERY_S = recording.RUN_EVERY_S = recording.PHASE_S = 0.05
    machine = Machine(os.environ.get("FAULT", ""))
    health = None if machine.fault == "hang" else HealthWatch(machine.nvml)
    return record.main(sys.argv[1:], recording.Sources(machine.look, health))


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)
