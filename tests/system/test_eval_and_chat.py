"""`drumline eval` and `drumline chat` as real commands, on a run that the real command has trained on two ranks."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from drumline.rundir import RunDir, read_lines
from tests.cli.real_command import COMMAND, Command, write_recipe

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six updates of runs/tiny, and another held-out text."""
    folder = write_recipe(tmp_path_factory.mktemp("out"))
    (folder / "other.txt").write_text("It is a way I have of driving off the spleen.\n" * 4)
    ended = Command(folder, "train", "tiny.yaml", "--set", "train.averaging.kind=ema").wait()
    assert ended.status == 0, ended.err
    return folder


def test_it_comes_to_what_the_run_itself_came_to(folder: Path) -> None:
    ended = Command(folder, "eval", "runs/tiny", "--json").wait()
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    [*_, last] = [line for line in read_lines(RunDir(folder / "runs/tiny").metrics) if line["kind"] == "eval"]
    assert found["step"] == last["step"] == 6
    assert found["metrics"].keys() == {"count", "loss", "accuracy", "perplexity"}
    assert found["metrics"] == pytest.approx({name: last[name] for name in found["metrics"]}, abs=1e-6)
    assert found["in_run"] == pytest.approx(found["metrics"], abs=1e-6)
    assert list((folder / "runs/launch").iterdir()) == []


def test_other_data_and_an_earlier_checkpoint(folder: Path) -> None:
    arguments = ["--data", "other.txt", "--step", "4", "--set", "hardware.num_processes=1"]
    ended = Command(folder, "eval", "runs/tiny", *arguments).wait()
    assert ended.status == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == "runs/tiny, after update 4"
    assert "in the run" not in ended.out
    assert any(line.split()[:1] == ["perplexity"] for line in lines)


def test_what_is_not_there_is_refused(folder: Path) -> None:
    ended = Command(folder, "eval", "runs/tiny", "--step", "5").wait()
    assert ended.status == 2
    assert "no checkpoint of update 5" in ended.err


def test_each_line_of_a_pipe_is_a_turn(folder: Path) -> None:
    chosen = [each for key in ("device=cpu", "tokens=5", "seed=1", "temperature=2") for each in ("--set", key)]
    command = [str(COMMAND), "chat", "runs/tiny", *chosen, "--json"]
    ended = subprocess.run(
        command, cwd=folder, input="Call me\n\nCall me\n", capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    first, second = map(json.loads, ended.stdout.splitlines())
    assert first.pop("seconds") >= 0 and second.pop("seconds") >= 0
    assert first == second  # it is no chat: each text stands for itself
    assert (first["tokens"], first["ended"]) == (5, "length")


def test_ctrl_c_stops_the_answer_and_what_there_is_stands(folder: Path) -> None:
    command = [str(COMMAND), "chat", "runs/tiny", "--prompt", "Call me", "--set", "tokens=1000000"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
        assert chat.stdout is not None and chat.stderr is not None
        assert chat.stdout.read(1), chat.stderr.read()  # words come as they are written
        chat.send_signal(signal.SIGINT)
        rest = chat.stdout.read()
        assert rest.endswith(b"\n")
        assert chat.wait(30) == 0


def test_what_cannot_be_talked_to_is_refused(folder: Path) -> None:
    ended = Command(folder, "chat", "runs", "--prompt", "x").wait()
    assert ended.status == 2
    assert "no config.json" in ended.err
