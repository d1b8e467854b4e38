"""What is to be started, as one record that the launcher, its agent and the workers share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from drumline.rundir import RunDir, read_json, write_json

MARK = "DRUMLINE_LAUNCH"
"""Variable with the launch's id in the environment of every process of a launch, by which stragglers are found."""


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
    stop_grace_s: float = 30.0
    """How long ranks may take to end after a signal to the launcher, to save for instance."""

    @property
    def run(self) -> RunDir:
        """The run directory's names."""
        return RunDir(self.run_dir)

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
        return cls(**values | {"gpus": None if gpus is None else tuple(gpus)}), launch_id
