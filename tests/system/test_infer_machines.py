"""The same `drumline infer` on two machines at once, which see one folder: two host names of this one (unshare(1))."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.predictions import PredictionDir
from drumline.rundir import read_json
from tests.cli.prediction import arguments, batches_done, make_model, write_rows
from tests.cli.real_command import Command

pytestmark = pytest.mark.system
COUNT = 240
LONG: dict[str, Any] = {"task.max_new_tokens": 64}
"""Long enough that a second machine has loaded the model before all is done."""


class Machine(Command):
    """The command on a machine of this name."""

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        super().__init__(folder, *arguments, before=named)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, rows, and the answers of one machine."""
    folder = tmp_path_factory.mktemp("whole")
    given = arguments(make_model(folder), write_rows(folder / "rows.jsonl", COUNT), "one.jsonl", **LONG)
    ended = Command(folder, *given).wait()
    assert ended.status == 0, ended.err
    return folder


def given_to(folder: Path) -> list[str]:
    return arguments(folder / "model", folder / "rows.jsonl", "out.jsonl", **LONG)


def test_both_answer_rows_and_write_what_one_writes(whole: Path, tmp_path: Path) -> None:
    out, directory = tmp_path / "out.jsonl", PredictionDir(tmp_path / "out.jsonl.run")
    with Machine("first", tmp_path, *given_to(whole)) as first:
        first.reaches(directory.run.config.is_file)
        with Machine("second", tmp_path, *given_to(whole)) as second:
            second.reaches(lambda: any(directory.workers.glob("second-*.jsonl")), limit_s=120)
            third = Machine("second", tmp_path, *given_to(whole)).wait()
            ended = second.wait()
        led = first.wait()
    assert third.status == 2 and "a run goes on in" in third.err
    assert (led.status, ended.status) == (0, 0), (led.err, ended.err)
    assert "which another machine leads" in ended.out and "another machine" not in led.out
    assert out.read_bytes() == (whole / "one.jsonl").read_bytes()
    assert (directory.run.logs / "worker_0.log").exists() and (directory.run.logs / "worker_second_0.log").exists()
    assert read_json(directory.run.exit)["reason"] == "done"


def test_where_the_first_machine_dies_the_second_ends_the_run(whole: Path, tmp_path: Path) -> None:
    out, directory = tmp_path / "out.jsonl", PredictionDir(tmp_path / "out.jsonl.run")
    with Machine("first", tmp_path, *given_to(whole)) as first:
        first.reaches(lambda: batches_done(out) >= 1)
        with Machine("second", tmp_path, *given_to(whole)) as second:
            second.reaches(lambda: any(directory.workers.glob("second-*.jsonl")), limit_s=120)
            first.kill()
            ended = second.wait()
    assert ended.status == 0, ended.err
    assert out.read_bytes() == (whole / "one.jsonl").read_bytes()
    assert read_json(directory.run.exit)["reason"] == "done"
