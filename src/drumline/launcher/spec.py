"""What is to be started, as one record that the launcher, its agent and the workers share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drumline.rundir import RunDir, read_json, write_json

if TYPE_CHECKING:
    from drumline.config.schema import FaultsConfig

MARK = "DRUMLINE_LAUNCH"
"""Variable with the launch's id in the environment of every process of a launch, by which stragglers are found."""
JOINED = "DRUMLINE_JOINED"
"""Variable with the config of a run, as YAML, for a process of a world that somebody else has started."""


def stopped_file(run: RunDir, rank: int) -> Path:
    """Where a rank that something from outside has stopped leaves why; its run is saved."""
    return run.logs / f"rank_{rank}.stopped.json"


@dataclass(frozen=True)
class LaunchSpec:
    """Workers of one machine: what they run, and how long they get to end."""

    run_dir: Path
    """An existing run directory (RunDir.create); logs and records of the launch go to its logs/."""
    num_workers: int
    kind: Literal["script", "module", "function"]
    target: str
    """Path of the script, name of the module, or the file that functions.py wrote."""
    args: tuple[str, ...] = ()
    """sys.argv[1:] of a script or module."""
    gpus: tuple[str, ...] | None = None
    """UUIDs for CUDA_VISIBLE_DEVICES, one a worker, or several of one's; () hides every GPU; None leaves it alone."""
    failure_grace_s: float = 5.0
    """How long the other ranks may take to end by themselves once one has failed."""
    stop_grace_s: float = 600.0
    """How long ranks may take to end after a signal to the launcher, to save for instance."""
    stop_signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
    """Signals to the launcher that are passed on to the ranks, each once."""

    @property
    def run(self) -> RunDir:
        """The run directory's names."""
        return RunDir(self.run_dir)

    def heeding(self, faults: FaultsConfig) -> LaunchSpec:
        """The same, with the config's stop signals and grace."""
        return replace(self, stop_grace_s=faults.stop_grace_s, stop_signals=tuple(faults.stop_signals))

    def write(self, launch_id: str) -> Path:
        """Write the record beside the logs; returns its path."""
        values = {**asdict(self), "run_dir": str(self.run_dir.resolve()), "launch_id": launch_id}
        path = self.run.logs / "launch.json"
        write_json(path, values)
        return path

    @classmethod
    def read(cls, path: Path) -> tuple[LaunchSpec, str]:
        """Read what `write` wrote: the spec and the launch's id."""
        values = read_json(path)
        launch_id: str = values.pop("launch_id")
        gpus = values["gpus"]
        values |= {"run_dir": Path(values["run_dir"]), "args": tuple(values["args"])}
        values["stop_signals"] = tuple(values["stop_signals"])
        return cls(**values | {"gpus": None if gpus is None else tuple(gpus)}), launch_id
