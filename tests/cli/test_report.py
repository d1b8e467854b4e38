"""`drumline report` as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from drumline.cli.report import register
from drumline.errors import ConfigError
from drumline.predictions import PredictionDir
from drumline.rundir import LineWriter, RunDir, write_json


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    return app


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path / "moby")
    run.config.write_text("name: moby\n")
    writer = LineWriter(run.metrics)
    for step in (10, 20):
        writer.write({"kind": "train", "step": step, "loss": 3.0, "samples_per_s": float("nan")})
        writer.write({"kind": "eval", "step": step, "loss": 2.0 + step / 100, "count": 9})
    writer.close()
    write_json(run.exit, {"exit_status": 0, "reason": "done", "message": "", "steps": 20})
    return run


def test_it_says_how_the_run_went_and_where_the_page_is(app: typer.Typer, run: RunDir) -> None:
    result = CliRunner().invoke(app, ["report", str(run.path)])
    page = run.path / "report" / "index.html"
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        ["done, 20 updates, evaluation loss 2.2000, best 2.1000 at update 10", f"report: {page}"],
    )
    assert page.stat().st_size > 10_000


def test_json_names_every_file_and_is_strict(app: typer.Typer, run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["report", str(run.path), "--out", str(out), "--json"])
    assert result.exit_code == 0
    document = json.loads(result.output, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert document["page"] == str(out / "index.html")
    assert {*document["images"], document["page"]} == {str(file) for file in out.iterdir()}
    assert document["summary"]["best_eval_loss"] == 2.1
    assert document["summary"]["units_per_s"] is None


@pytest.mark.parametrize(
    ("state", "problem", "fix"),
    [
        ("missing", "there is no run directory", "drumline report runs/NAME"),
        ("other", "is not a run directory", "the directory of the run itself"),
        ("early", "has no metrics yet", "logs"),
        ("empty", "has no metrics yet", "logs"),
    ],
)
def test_what_cannot_be_reported_is_a_bad_request_with_advice(
    state: str, problem: str, fix: str, app: typer.Typer, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    if state == "other":
        path.mkdir()
    elif state in {"early", "empty"}:
        run = RunDir.create(path)
        run.config.write_text("name: moby\n")
        if state == "empty":
            run.metrics.touch()
    result = CliRunner().invoke(app, ["report", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.exit_status == 2
    assert problem in result.exception.problem
    assert fix in result.exception.fix
    assert not (path / "report").exists()


@pytest.fixture
def other(run: RunDir) -> RunDir:
    other = RunDir.create(run.path.with_name("ahab"))
    other.config.write_text("name: moby\ntrain: {lr: 0.5}\n")
    other.metrics.write_bytes(run.metrics.read_bytes())
    return other


def test_several_runs_are_compared_and_what_is_no_run_is_left_out(app: typer.Typer, run: RunDir, other: RunDir) -> None:
    launch = run.path.with_name("launch")
    launch.mkdir()
    command = ["report", str(run.path), str(launch), str(other.path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    page = run.path.with_name("comparison") / "index.html"
    assert result.stderr == f"left out: {launch} is not a run directory: it has no metrics.jsonl\n"
    assert result.stdout.splitlines()[-2:] == ["settings that differ: train.lr", f"report: {page}"]
    assert all(f"moby ({name})" in result.stdout for name in ("moby", "ahab"))
    assert page.stat().st_size > 10_000
    again = CliRunner().invoke(app, [*command, str(page.parent)])  # as `runs/*` gives it the second time
    assert (again.exit_code, again.stdout) == (0, result.stdout)


def test_the_comparison_as_json(app: typer.Typer, run: RunDir, other: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out"
    empty = tmp_path / "empty"
    empty.mkdir()
    command = ["report", str(run.path), str(other.path), str(empty), "--out", str(out), "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    document = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert {*document["images"], document["page"]} == {str(file) for file in out.iterdir()}
    assert [each["name"] for each in document["runs"]] == ["moby (moby)", "moby (ahab)"]
    assert [each["path"] for each in document["runs"]] == [str(run.path), str(other.path)]
    assert document["runs"][0]["summary"]["best_eval_loss"] == 2.1
    assert document["differences"] == {"train.lr": ["not set", "0.5"]}
    assert list(document["left_out"]) == [str(empty)]


def test_several_that_cannot_be_compared(app: typer.Typer, run: RunDir, tmp_path: Path) -> None:
    typo = CliRunner().invoke(app, ["report", str(run.path), str(tmp_path / "mobby")])
    assert isinstance(typo.exception, ConfigError)
    assert "there is no run directory" in typo.exception.problem
    for name in ("empty", "void"):
        (tmp_path / name).mkdir()
    none = CliRunner().invoke(app, ["report", str(tmp_path / "empty"), str(tmp_path / "void")])
    assert isinstance(none.exception, ConfigError)
    assert "none of these directories holds a run" in none.exception.problem
    run.path.rename(tmp_path / "comparison")
    taken = CliRunner().invoke(app, ["report", str(tmp_path / "comparison"), str(tmp_path / "empty")])
    assert isinstance(taken.exception, ConfigError)
    assert "--out" in taken.exception.fix
    assert not (tmp_path / "comparison" / "index.html").exists()


def test_it_imports_neither_torch_nor_pyplot(run: RunDir) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from drumline.track.comparison import read_runs, write_comparison\n"
        "from drumline.track.report import write_report\n"
        "assert 'matplotlib' not in sys.modules\n"
        "write_report(Path(sys.argv[1]))\n"
        "write_comparison(read_runs([Path(sys.argv[1])]), Path(sys.argv[1], 'report'))\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_of_a_prediction_it_says_what_came_of_the_rows(app: typer.Typer, run: RunDir, tmp_path: Path) -> None:
    place = PredictionDir(tmp_path / "answers.csv.run")
    place.ledger.mkdir(parents=True)
    place.workers.mkdir()
    lines = [{"time": time, "rows": rows, "tokens": 0} for time, rows in ((1.0, 0), (5.0, 8))]
    (place.workers / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_json(place.summary, {"num_rows": 8, "num_failed": 1, "errors": {"too long": 1}, "lengths": [[8, 8]]})
    write_json(place.run.exit, {"exit_status": 0, "reason": "done", "message": ""})
    said = CliRunner().invoke(app, ["report", str(place.path)]).output.splitlines()
    assert said[0].startswith("done, rows 8, rows with an error 1, rows/s 2.0 of all workers together")
    assert said[1] == f"report: {place.path / 'report' / 'index.html'}"
    told = json.loads(CliRunner().invoke(app, ["report", str(place.path), "--json"]).output)
    assert (told["summary"]["rows_done"], told["answers"]["errors"]) == (8, {"too long": 1})
    assert {Path(name).name for name in told["images"]} == {"throughput.png", "lengths.png"}
    both = CliRunner().invoke(app, ["report", str(run.path), str(place.path)])
    assert both.exit_code == 0 and "is a prediction run" in both.stderr
