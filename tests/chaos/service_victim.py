"""A service without its HTTP part, to be killed: `python service_victim.py DATA_DIR STORE_URL SLOTS`.

Its jobs' commands are simulated (tests/cli/simulated_job.py); all else is real.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from drumline.config.service import SchedulingConfig, ServiceConfig  # noqa: E402
from drumline.jobs.devices import slots  # noqa: E402
from drumline.jobs.executor import Executor  # noqa: E402
from drumline.jobs.records import Inventory  # noqa: E402
from drumline.jobs.store import open_store  # noqa: E402
from drumline.jobs.supervisor import Supervisor  # noqa: E402
from tests.cli.simulated_job import simulated_commands  # noqa: E402

NODE = "victim"


def ready_file(data_dir: Path, pid: int) -> Path:
    """What a service makes when it has begun to look after jobs."""
    return data_dir / f"ready_{pid}"


def main(data_dir: Path, url: str, num_slots: int) -> None:
    """Serve until it is killed."""
    logging.basicConfig(level=logging.WARNING)
    policy = SchedulingConfig(least_run_s=0.3, stop_grace_s=20.0, lease_s=3.0)
    config = ServiceConfig(data_dir=data_dir, database=url, node=NODE, scheduling=policy)
    supervisor = Supervisor(
        open_store(url),
        Executor(data_dir, commands=simulated_commands),
        lambda: Inventory(NODE, time.time(), slots(num_slots)),
        config,
    )
    supervisor.start()
    ready_file(data_dir, os.getpid()).touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
