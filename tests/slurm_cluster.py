"""A real SLURM cluster of this machine alone, for tests: of the installed package, in a folder of its own."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.service_callers import free_ports

START_LIMIT_S = 60.0
LOOK_S = 0.2

SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
ReturnToService=2
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """One node, whose jobs have as many tasks as it has CPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs: list[subprocess.Popen[bytes]] = []
        for name in ("controller", "node"):
            (folder / name).mkdir()
        ports = free_ports(2)
        settings = SETTINGS.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=folder,
            controller_port=ports[0],
            node_port=ports[1],
            cpus=os.cpu_count(),
        )
        (folder / "slurm.conf").write_text(settings)
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start controller and node, and wait until it is idle."""
        for program in ("slurmctld", "slurmd"):
            with (self._folder / f"{program}.log").open("wb") as log:
                command = [f"/usr/sbin/{program}", "-D"]
                self._programs.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))
        limit = time.monotonic() + START_LIMIT_S
        while self.run("sinfo", "--noheader", "--format=%T").stdout.strip() != "idle":
            if time.monotonic() > limit or any(program.poll() is not None for program in self._programs):
                logs = "\n".join(log.read_text(errors="replace") for log in self._folder.glob("*.log"))
                raise RuntimeError(f"the cluster did not start:\n{logs}")
            time.sleep(LOOK_S)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of SLURM's commands to its end."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=300, check=False)

    def begin(self, *command: str) -> subprocess.Popen[str]:
        """Start one of SLURM's commands."""
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def stop(self) -> None:
        """End it, and whatever runs in it."""
        if self._programs:
            self.run("scancel", "--user", getpass.getuser())
        for program in reversed(self._programs):
            program.terminate()
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster in this folder, which ends with the block."""
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
