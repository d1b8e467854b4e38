"""`drumline jobs` without a service, and what it says where it cannot help."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drumline.cli.app import app
from drumline.cli.job_request import request_of
from drumline.config.service_file import load_service_config
from drumline.errors import ConfigError
from drumline.jobs.keeper_files import log_of
from drumline.service.in_process import InProcess
from tests.cli.test_serve import inside, refused


def test_a_job_lies_in_its_data_directory(tmp_path: Path) -> None:
    made = inside(tmp_path, "jobs", "submit", "quickstart", "--job", "name=moby", "--job", "resources.priority=3")
    job = made.stdout.strip()
    assert "it runs once a service runs on this data directory" in made.stderr
    assert (tmp_path / "drumline-data").stat().st_mode & 0o077 == 0
    log_of(tmp_path / "drumline-data" / "jobs" / job).write_text("step 1\nstep 2\n")
    assert inside(tmp_path, "jobs", "cancel", job).stdout.startswith(f"{job} is cancelled")
    assert inside(tmp_path, "jobs", "logs", "-f", job).stdout == "step 1\nstep 2\n"
    assert inside(tmp_path, "jobs", "logs", job, "--tail", "1").stdout == "step 2\n"
    again = json.loads(inside(tmp_path, "jobs", "retry", job, "--json").stdout)
    assert (again["retry_of"], again["name"], again["resources"]["priority"]) == (job, "moby", 3)


def test_ids_are_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcess(load_service_config(None, [f"data_dir={tmp_path}/drumline-data"])) as jobs:
        job = jobs.submit(request_of("quickstart", None, [], [], [f"name={'x' * 60}"])).id
        assert [found.id for found in jobs.list(state=["queued"])] == [job]
        assert list(jobs.list(state=["failed"])) == []
        assert list(jobs.logs(job)) == [] and jobs.get(job).state == "queued"
        with pytest.raises(ConfigError, match="no log 'other'"):
            list(jobs.logs(job, source="other"))
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.chdir(tmp_path)
    table = CliRunner().invoke(app, ["jobs", "list"]).stdout
    assert job in table and "queued" in table and "xxx" not in table


def test_another_users_data_directory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drumline-data").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    for arguments in (["jobs", "submit", "quickstart"], ["tokens", "create", "ann"]):
        assert f"belongs to the user {tmp_path.owner()}" in refused(tmp_path, *arguments)
    assert list((tmp_path / "drumline-data").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list"], "there is no store of a service in"),
        (["list", "--url", "http://127.0.0.1:1", "--data-dir", "x"], "--url and a data directory"),
        (["show", "a/../b", "--url", "http://127.0.0.1:1"], "no id of a job"),
        (["list", "--url", "http://127.0.0.1:1", "--key-file", "none"], "no key can be read"),
        (["submit"], "neither a recipe nor --model"),
        (["list", "--data-dir", "/dev/null/x"], "cannot be looked at"),
    ],
)
def test_what_cannot_be_done_is_told(tmp_path: Path, arguments: list[str], problem: str) -> None:
    assert problem in refused(tmp_path, "jobs", *arguments)
    assert list(tmp_path.iterdir()) == []
