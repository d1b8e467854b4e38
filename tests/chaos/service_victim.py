"""A service to be killed, whose jobs' commands are simulated (tests/cli/simulated_job.py); all else is real.

    python service_victim.py DATA_DIR STORE_URL SLOTS     without its HTTP part
    python service_victim.py SERVICE_YAML PORT            `drumline serve`

What the jobs of the latter do stands in their names, since a request's settings must be those of a real training.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from drumline.config.service import SchedulingConfig, ServiceConfig  # noqa: E402
from drumline.jobs.devices import slots  # noqa: E402
from drumline.jobs.executor import Executor  # noqa: E402
from drumline.jobs.keeper_files import Command  # noqa: E402
from drumline.jobs.records import Inventory, Job  # noqa: E402
from drumline.jobs.store import open_store  # noqa: E402
from drumline.jobs.supervisor import Supervisor  # noqa: E402
from tests.cli.simulated_job import simulated_commands  # noqa: E402

NODE = "victim"
POLICY = SchedulingConfig(least_run_s=0.3, stop_grace_s=20.0, lease_s=3.0)


def ready_file(data_dir: Path, pid: int) -> Path:
    """What a service makes when it has begun to look after jobs."""
    return data_dir / f"ready_{pid}"


def settings_of(job: Job) -> Mapping[str, Any]:
    """What the job does, for simulated_job.py."""
    settings: Mapping[str, Any] = json.loads(job.name) if job.name else job.work.settings
    return settings


def commands(job: Job, folder: Path) -> list[Command]:
    """Simulated ones, of what its name says."""
    return simulated_commands(replace(job, work=replace(job.work, settings=settings_of(job))), folder)


def main(data_dir: Path, url: str, num_slots: int) -> None:
    """Look after jobs until it is killed."""
    logging.basicConfig(level=logging.WARNING)
    config = ServiceConfig(data_dir=data_dir, database=url, node=NODE, scheduling=POLICY)
    supervisor = Supervisor(
        open_store(url),
        Executor(data_dir, commands=commands),
        lambda: Inventory(NODE, time.time(), slots(num_slots)),
        config,
    )
    supervisor.start()
    ready_file(data_dir, os.getpid()).touch()
    while True:
        signal.pause()


def serve(file: Path, port: int) -> None:
    """The command `drumline serve`, until it is killed."""
    from drumline.cli.app import main as drumline
    from drumline.service import opening

    vars(opening)["Executor"] = partial(Executor, commands=commands)
    sys.argv = ["drumline", "serve", "--config", str(file), "--set", f"port={port}"]
    drumline()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        serve(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
