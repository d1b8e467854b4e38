"""A run that workers of another launcher are at does not begin anew under them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drumline.cli.prediction_directory import join, take
from drumline.config.infer_file import load_inference_config
from drumline.config.inference import InferenceConfig
from drumline.errors import RunDirExists
from drumline.predictions import PredictionDir

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 4711)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Another process has a lock on a byte of the file."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield
        holder.communicate()


def config_in(folder: Path, *overrides: str) -> InferenceConfig:
    values = {"model": {"path": "m"}, "rows": {"files": ["in.jsonl"]}, "output": {"file": str(folder / "out.jsonl")}}
    return load_inference_config(None, values, overrides)


def test_it_does_not_begin_anew_while_anybody_holds_a_batch(tmp_path: Path) -> None:
    directory = PredictionDir(config_in(tmp_path).directory)
    join(directory, config_in(tmp_path))
    directory.locks.touch()
    directory.rows.touch()
    with held(directory.locks), pytest.raises(RunDirExists, match="workers are at the run in"):
        take(directory, config_in(tmp_path, "seed=1"))
    assert directory.rows.exists()
    assert load_inference_config(directory.run.config, {}).seed == 0
    take(directory, config_in(tmp_path, "seed=1")).release()
    assert not directory.rows.exists()
