"""The real `drumline serve`, with jobs submitted, watched and stopped by the real `drumline jobs`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from drumline import Client
from drumline.cli.app import app
from drumline.cli.serve import farewell
from tests.cli.real_command import COMMAND, Command

TOO_MANY = "resources.devices=1000"
"""More than any machine here has: the job stays queued, with a reason."""


def drumline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command, which must succeed; in a window that is wide enough for everything."""
    environment = {**os.environ, "COLUMNS": "200"}
    ended = subprocess.run(
        [str(COMMAND), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def inside(folder: Path, *arguments: str, status: int = 0) -> Result:
    """Run the command in this process, which is quicker; it must end with this status."""
    with contextlib.chdir(folder):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert result.exit_code == status, result.output
    return result


def refused(folder: Path, *arguments: str, status: int = 2) -> str:
    """What the command says that it cannot do."""
    return inside(folder, *arguments, status=status).stderr


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A service in `folder`, and its address."""
    command = [str(COMMAND), "serve", "--set", "port=0", *arguments]
    with (
        (folder / "serve.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            said = re.fullmatch(
                r"drumline is at (http://127\.0\.0\.1:\d+)/; Ctrl-C ends it, running jobs go on\n", line
            )
            assert said is not None, line + (folder / "serve.log").read_text()
            yield said[1], process
        finally:
            if process.poll() is None:
                process.kill()


def test_jobs_at_a_service_and_in_its_data_directory(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "ads.txt").write_text("one\ntwo\n")
    (tmp_path / "service.yaml").write_text("files: {model_names: {tiny: models/tiny}}\ndata_dir: jobs\n")
    ask = ("--model", "tiny", "--data", "@ads.txt", "--job", TOO_MANY, "--job", "name=first")
    with serving(tmp_path, "--config", "service.yaml") as (url, process):
        job = drumline(tmp_path, "jobs", "submit", *ask, "--url", url).stdout.strip()
        listed: list[dict[str, Any]] = json.loads(drumline(tmp_path, "jobs", "list", "--url", url, "--json").stdout)
        assert [(found["id"], found["name"]) for found in listed] == [(job, "first")]
        with Command(tmp_path, "jobs", "logs", "-f", job, "--url", url) as follower:
            shown = drumline(tmp_path, "jobs", "show", job, "--data-dir", "jobs").stdout
            assert re.search(r"^waits for +\S.*1,?000", shown, re.M), shown
            with Client(url) as client:
                assert client.cancel(job).state == "cancelled"
            assert follower.wait().status == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout is not None and process.stdout.read() == farewell(0) + "\n"
    unreachable = refused(tmp_path, "jobs", "list", "--url", url, status=1)
    assert f"no answer from {url}" in unreachable and "drumline serve" in unreachable


def test_a_service_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = refused(tmp_path, "serve", "--set", f"port={other.getsockname()[1]}")
    assert "nothing can be served at 127.0.0.1" in taken
    assert "access.keys is off" in refused(tmp_path, "serve", "--set", "host=0.0.0.0", "--set", "access.keys=off")
    (tmp_path / "service.yaml").write_text("port: 8000\nacces: {}\n")
    mistaken = refused(tmp_path, "serve", "--config", "service.yaml")
    assert "service.yaml line 2: acces: there is no such key" in mistaken and "access?" in mistaken


@pytest.mark.parametrize(
    ("running", "said"),
    [(0, "no job was running"), (1, "1 running job goes on"), (3, "3 running jobs go on")],
)
def test_the_end_says_what_goes_on(running: int, said: str) -> None:
    assert said in farewell(running)
