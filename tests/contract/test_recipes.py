"""Every packed recipe parses, and trains for two steps in a size that a test can afford."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from drumline.config.load import dump_config, load_config
from drumline.config.recipes import recipes_folder
from drumline.rundir import RunDir, read_lines
from tests.tiny_models import save_bert, save_llama

COMMAND = Path(sys.executable).with_name("drumline")
RECIPES = sorted(path.stem for path in recipes_folder().glob("*.yaml"))

SMALL = [
    "train.max_steps=2",
    "train.schedule.warmup_steps=1",
    "train.global_batch=4",
    "train.micro_batch=1",
    "track.every=1",
    "track.console=false",
]
SMALLER: dict[str, list[str]] = {
    "quickstart": ["data.train=['recipes:moby_dick/chapter_1.txt']"],
    # Its text is no part of this repository: random tokens stand in, as its own comment says.
    "gpt2_124m": [
        "data={kind: random_tokens, num_rows: 16, num_eval_rows: 4, context: 32, vocab_size: 512}",
        "model.num_layers=1",
        "model.width=64",
        "model.num_heads=2",
        "train.compile=none",
    ],
    "classify_text": [],
    "classify_images": [],
    "custom": [],
    # Tiny models with random weights stand in for those on the hub.
    "finetune_causal": [
        "model.path=llama",
        "data.tokenizer=llama",
        "data.train=['recipes:moby_dick/chapter_1.txt']",
        "data.eval=['recipes:moby_dick/chapter_122.txt']",
        "data.context=64",
    ],
    "finetune_chat": ["model.path=llama"],
    "finetune_lora": ["model.path=llama"],
    "classify_minilm": ["model.path=bert"],
}
CLASSES = {"classify_text": 8, "classify_images": 10, "custom": 10, "classify_minilm": 8}
QUICKEST = ("quickstart", "finetune_lora", "gpt2_124m")
"""Of recipes these are tried by `make test` too, each of another kind; the rest by `make test-system`."""
MODELS = {"llama": save_llama, "bert": save_bert}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders by name."""
    return {name: str(save(tmp_path_factory.mktemp(name))) for name, save in MODELS.items()}


def pulse(recipe: str, folder: Path, models: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Train two steps of a recipe, shrunk, in `folder`; the run directory is `folder/run`."""
    settings = [*SMALL, *SMALLER.get(recipe, []), f"run_dir={folder}/run"]
    for name, path in (models or {}).items():
        settings = [setting.replace(f"={name}", f"={path}") for setting in settings]
    command = [str(COMMAND), "train", recipe, *(part for setting in settings for part in ("--set", setting))]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_there_are_recipes() -> None:
    assert set(SMALLER) == set(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_parses_and_is_written_back_equal(recipe: str, tmp_path: Path) -> None:
    config = load_config(recipe)
    assert config.data is not None
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_config(config))
    assert load_config(copy) == config


@pytest.mark.parametrize(
    "recipe", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.system) for name in RECIPES]
)
def test_a_recipe_has_a_pulse(recipe: str, tmp_path: Path, models: dict[str, str]) -> None:
    result = pulse(recipe, tmp_path, models)
    assert result.returncode == 0, result.stdout + result.stderr
    run = RunDir(tmp_path / "run")
    steps = [record["step"] for record in read_lines(run.metrics) if record["kind"] == "train"]
    assert steps == [1, 2]
    end = json.loads(run.exit.read_text())
    assert (end["exit_status"], end["steps"]) == (0, 2)
    assert load_config(run.config).train.max_steps == 2
    if recipe in CLASSES:
        [data] = [event for event in read_lines(run.events) if event["event"] == "data"]
        assert (len(data["classes"]), data["train"]["bad_rows"]) == (CLASSES[recipe], 0)
        last = list(read_lines(run.metrics))[-1]
        assert last["kind"] == "eval" and 0 <= last["accuracy"] <= 1


def test_a_recipe_that_was_copied_with_its_model_has_a_pulse(tmp_path: Path) -> None:
    command = [str(COMMAND), "config", "copy", "custom", "mine.yaml"]
    copied = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (copied.returncode, copied.stdout.split()) == (0, ["mine.yaml", "custom_model.py"])
    model = tmp_path / "custom_model.py"
    model.write_text(model.read_text().replace("128", "7"))
    result = pulse("mine.yaml", tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert load_config(tmp_path / "run/config.yaml").model.file == Path("custom_model.py")  # type: ignore[union-attr]


def test_packed_data_stays_small_and_carries_its_licences() -> None:
    files = [path for path in recipes_folder().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if "moby_dick" not in path.parts) < 1_500_000
    for folder in ("wordnet", "fashion"):
        assert "opyright" in (recipes_folder() / folder / "LICENSE").read_text()


def test_a_recipe_without_a_pulse_is_noticed(tmp_path: Path) -> None:
    planted = tmp_path / "planted.yaml"
    planted.write_text(yaml.safe_dump({"data": {"kind": "text", "train": ["no/such/file.txt"]}}))
    result = pulse(os.fspath(planted), tmp_path)
    assert result.returncode == 2 and "no/such/file.txt" in result.stderr
