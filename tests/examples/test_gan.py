"""examples/gan.py on one process and on two: points on a ring come out of noise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_lines

SCRIPT = Path(__file__).parents[2] / "examples/gan.py"
BIN = Path(sys.executable).parent
COMMANDS = {1: ("python",), 2: ("drumline", "launch", "--set", "hardware.num_processes=2")}


@pytest.mark.system
@pytest.mark.parametrize("world", COMMANDS)
def test_it_learns_the_ring(tmp_path: Path, world: int) -> None:
    name, *rest = COMMANDS[world]
    result = subprocess.run(
        [str(BIN / name), *rest, str(SCRIPT)],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    [path] = (tmp_path / "runs").glob("gan-*")
    lines = [record for record in read_lines(RunDir(path).metrics) if record["kind"] == "train"]
    assert [line["step"] for line in lines] == [160, 320, 480, 640, 800, 960]
    for line in lines:
        assert line["loss"] == pytest.approx(line["discriminator/loss"] + line["generator/loss"])
    # Means over ten epochs; a point that is drawn from the model as it began is 0.86 away from the nearest corner.
    assert lines[0]["distance"] > 0.4
    assert lines[-1]["distance"] < 0.25
    assert lines[-1]["corners"] > 7
