"""The logs of a job: what they are called in requests, and which files they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

from drumline.errors import ConfigError
from drumline.jobs.keeper_files import log_of, run_of

LOG_SOURCE = r"^(command|launcher|(rank|worker)_[0-9]{1,6})$"
_NUMBERED = re.compile(r"(rank|worker)_([0-9]{1,6})\.log")


def log_path(folder: Path, source: str) -> Path:
    """The file of a log, in a job's folder. Raises ConfigError for a name that no log has."""
    if not re.fullmatch(LOG_SOURCE, source):
        raise ConfigError(f"a job has no log {source!r}", "there are command, launcher, rank_<n> and worker_<n>")
    if source == "command":
        return log_of(folder)
    run = run_of(folder)
    if source.startswith("worker_"):
        return run.logs / f"worker_{int(source.removeprefix('worker_'))}.log"
    return run.logs / "agent.log" if source == "launcher" else run.log_of(int(source.removeprefix("rank_")))


def log_sources(folder: Path) -> list[str]:
    """Names of the logs that have been written, of all attempts; ranks and workers in the order of their numbers."""
    try:
        names = set(os.listdir(run_of(folder).logs))  # noqa: PTH208  # at each look at a job
    except (FileNotFoundError, NotADirectoryError):  # its run has not begun
        names = set()
    first = ["command"] if log_of(folder).is_file() else []
    found = filter(None, map(_NUMBERED.fullmatch, names))
    numbered = sorted((match[1], int(match[2])) for match in found)
    launcher = ["launcher"] if "agent.log" in names else []
    return first + launcher + [f"{kind}_{number}" for kind, number in numbered]
