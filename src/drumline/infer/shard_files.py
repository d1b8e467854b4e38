"""Which files are the shards that `drumline merge` was given: files, folders of them, or folders of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drumline.data.files import natural_key
from drumline.data.record_files import ENDINGS
from drumline.errors import ConfigError, DataError

WORKERS, RUNS, RESULTS = "gpu*", "run_*", "strategy_*.csv"
"""What the folders of one worker and of its runs are called, and the answers of a run."""


def shard_files(paths: Sequence[Path]) -> list[Path]:
    """The files with rows, in the order given; those of a folder by name, gpu2 before gpu10.

    Of a folder gpu*/run_*/strategy_*.csv the newest run of each counts, newest by its name. Raises ConfigError for what
    is not there or is named twice, DataError for a folder without shards and for a newest run without answers.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _in_folder(path)
        elif path.is_file():
            found.append(path)
        else:
            raise ConfigError(f"there is no shard {path}", "check the path")
    twice = sorted({str(path) for path in found if found.count(path) > 1})
    if twice:
        raise ConfigError(f"the shard {twice[0]} is given twice", "name each shard once")
    return found


def _in_folder(folder: Path) -> list[Path]:
    if workers := _folders(folder, WORKERS):
        return [file for worker in workers for file in _newest_run(worker)]
    if _folders(folder, RUNS):
        return _newest_run(folder)
    if any(folder.glob(RESULTS)):
        return _results(folder)
    files = [each for each in folder.iterdir() if each.is_file() and each.name.endswith(_endings())]
    if not files:
        raise DataError(
            f"the folder {folder} holds no shards",
            f"name files that end in {', '.join(ENDINGS)}, a folder of them, or one with {WORKERS}/{RUNS}/{RESULTS}",
        )
    return sorted((each for each in files if not each.name.startswith(".")), key=natural_key)


def _newest_run(worker: Path) -> list[Path]:
    runs = _folders(worker, RUNS)
    if not runs:
        raise DataError(f"{worker} holds no {RUNS}: its rows would be missing", "run its part, or name the shards")
    return _results(runs[-1])


def _results(run: Path) -> list[Path]:
    files = sorted(run.glob(RESULTS), key=natural_key)
    if not files:
        raise DataError(
            f"{run}, the newest run there, holds no {RESULTS}: it has not come to its end",
            "run it again, or name the files of the runs that count",
        )
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise DataError(f"{run} holds several answers to each row: {names}", "name the files of one strategy")
    return files


def _folders(folder: Path, pattern: str) -> list[Path]:
    return sorted((each for each in folder.glob(pattern) if each.is_dir()), key=natural_key)


def _endings() -> tuple[str, ...]:
    return (*ENDINGS, *(f"{ending}.gz" for ending in ENDINGS if ending != ".parquet"))
