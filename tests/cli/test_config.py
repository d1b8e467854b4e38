"""`drumline config`, and how a command ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import drumline
from drumline.cli.app import ExitStatusGroup, app
from drumline.config.load import load_config
from drumline.config.recipes import recipe_names
from drumline.errors import DrumlineError, LaunchError

runner = CliRunner()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("# Mine.\nseed: 5\ntrain: {global_batch: 4, max_steps: 2}\n")
    return path


def ends(arguments: list[str], status: int) -> tuple[str, str]:
    """Run a command, expect its exit status, and return what it wrote to its two streams."""
    result = runner.invoke(app, arguments, prog_name="drumline")
    assert result.exit_code == status, result.output
    return result.stdout, result.stderr


def test_version_and_help() -> None:
    assert ends(["--version"], 0)[0] == f"drumline {drumline.__version__}\n"
    out, _ = ends(["--help"], 0)
    assert all(word in out for word in ("Usage: drumline", "config", "plan", "doctor"))
    out, _ = ends(["config", "--help"], 0)
    assert all(f"\n  {word} " in out for word in ("list", "copy", "show", "validate", "schema"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nope"], "nope"),
        (["config", "nope"], "nope"),
        (["config", "show"], "RECIPE"),
        (["config", "show", "a.yaml", "--nope"], "--nope"),
        (["config", "show", "absent.yaml"], "absent.yaml: there is no such file"),
        (["config", "show", "absent"], "there is no recipe named 'absent'"),
        (["config", "validate", "absent.yaml", "--set"], "--set"),
    ],
)
def test_a_bad_request_ends_with_2_and_its_reason_on_standard_error(arguments: list[str], part: str) -> None:
    out, error = ends(arguments, 2)
    assert part in error
    assert not out


def test_list_shows_the_packed_recipes() -> None:
    out, _ = ends(["config", "list"], 0)
    listing = json.loads(ends(["config", "list", "--json"], 0)[0])
    assert [entry["name"] for entry in listing] == recipe_names()
    for entry in listing:
        assert entry["name"] in out
        assert Path(entry["path"]).is_file()


def test_show_prints_every_setting_and_loads_back(recipe: Path, tmp_path: Path) -> None:
    out, _ = ends(["config", "show", str(recipe), "--set", "train.lr=3e-4", "--set", "parallel.kind=ddp"], 0)
    assert "bucket_mb: auto" in out
    again = tmp_path / "again.yaml"
    again.write_text(out)
    assert load_config(again) == load_config(recipe, ["train.lr=3e-4", "parallel.kind=ddp"])


def test_validate_checks_keys_and_combinations(recipe: Path) -> None:
    assert ends(["config", "validate", str(recipe)], 0)[0] == f"{recipe} is valid\n"
    _, error = ends(["config", "validate", str(recipe), "--set", "train.gloabl_batch=3"], 2)
    assert error == (
        "error: --set train.gloabl_batch=3: train.gloabl_batch: there is no such key\n"
        "  fix: did you mean train.global_batch?\n"
    )
    _, error = ends(["config", "validate", str(recipe), "--set", "train.batch_size_per_gpu=3"], 2)
    assert "keep train.global_batch only" in error


def test_copy_makes_a_file_once(recipe: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.yaml"
    assert ends(["config", "copy", str(recipe), str(target)], 0)[0] == f"{target}\n"
    target.write_text("changed")
    _, error = ends(["config", "copy", str(recipe), str(target)], 2)
    assert f"{target} exists already" in error
    assert target.read_text() == "changed"


def test_schema_describes_every_section() -> None:
    schema = json.loads(ends(["config", "schema"], 0)[0])
    assert {"train", "model", "parallel", "hardware"} <= schema["properties"].keys()
    assert schema["$defs"]["TrainConfig"]["properties"]["lr"]["description"] == "Peak learning rate."


def status_of(raised: BaseException) -> tuple[int, str]:
    """Exit status and standard error of a command that raises."""
    failing = typer.Typer(cls=ExitStatusGroup, pretty_exceptions_enable=False)

    @failing.callback()
    def root() -> None:
        """Be a group even with one command."""

    @failing.command()
    def fail() -> None:
        raise raised

    result = runner.invoke(failing, ["fail"])
    return result.exit_code, result.stderr


def test_how_a_command_ends() -> None:
    assert status_of(DrumlineError("it broke", "mend it")) == (1, "error: it broke\n  fix: mend it\n")
    assert status_of(LaunchError("no worker", "look")) == (1, "error: no worker\n  fix: look\n")
    assert status_of(KeyboardInterrupt()) == (3, "interrupted\n")
    assert status_of(typer.Exit(7)) == (7, "")


def test_deep_validation_builds_data_and_model(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("call me Ishmael " * 40)
    recipe = tmp_path / "deep.yaml"
    section = f"data: {{kind: text, train: ['{text}'], context: 8, cache_dir: '{tmp_path}/cache'}}"
    recipe.write_text(f"model: {{num_layers: 1, width: 16}}\n{section}\ntrain: {{global_batch: 2, max_steps: 2}}\n")
    command = [sys.executable, "-m", "drumline", "config", "validate", "--deep", str(recipe)]
    good = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stdout) == (0, f"{recipe} is valid\n")
    bad = subprocess.run([*command, "--set", "model.vocab_size=3"], capture_output=True, text=True, timeout=60)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: model.vocab_size is 3, the tokenizer has 257 ids")
