"""Settings of a prediction run: defaults, file, arguments, overrides; errors that say where; what may change later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.config.infer_changes import differences, refuse_other
from drumline.config.infer_file import dump_inference_config, load_inference_config
from drumline.config.inference import ChooseTask, GenerateTask
from drumline.errors import ConfigError

GIVEN: dict[str, Any] = {"model": {"path": "org/m"}, "rows": {"files": ["in.jsonl"]}, "output": {"file": "out.jsonl"}}


def write(folder: Path, text: str) -> Path:
    path = folder / "infer.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_arguments_alone_are_enough_and_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local").mkdir()
    config = load_inference_config(None, GIVEN)
    assert (config.model.path, config.rows.files) == ("org/m", [str(tmp_path / "in.jsonl")])
    assert config.output.file == tmp_path / "out.jsonl"
    assert config.directory == tmp_path / "out.jsonl.run"
    assert config.task == GenerateTask()
    local = load_inference_config(None, {**GIVEN, "model": {"path": "local"}})
    assert local.model.path == str(tmp_path / "local")


def test_overrides_win_over_arguments_and_arguments_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {path: a, dtype: float32}\nrows: {files: [x], limit: 3}\ntask: choose\nseed: 1\n")
    values = {**GIVEN, "rows": {"limit": 5}, "task": {"labels": ["a", "b"]}}
    config = load_inference_config(path, values, ["rows.limit=7", "task.score=mean"])
    assert (config.model.path, config.model.dtype, config.rows.limit, config.seed) == ("org/m", "float32", 7, 1)
    assert config.task == ChooseTask(labels=["a", "b"], score="mean")


@pytest.mark.parametrize("overrides", [["task=choose", "task.labels=[a]"], ["task={kind: choose, labels: [a]}"]])
def test_a_bare_kind_is_a_task_and_keys_go_below_it(overrides: list[str]) -> None:
    assert load_inference_config(None, GIVEN, overrides).task == ChooseTask(labels=["a"])


def test_a_kind_keeps_the_files_settings_of_that_kind_only(tmp_path: Path) -> None:
    path = write(tmp_path, "task: {kind: choose, labels: [a, b]}\n")
    assert load_inference_config(path, {**GIVEN, "task": "choose"}).task == ChooseTask(labels=["a", "b"])
    assert load_inference_config(path, {**GIVEN, "task": "generate"}).task == GenerateTask()


@pytest.mark.parametrize(
    ("text", "values", "overrides", "problem"),
    [
        ("modle: 1\n", GIVEN, [], "infer.yaml line 1: modle: there is no such key"),
        ("task: chose\n", GIVEN, [], "infer.yaml line 1: task.kind: 'chose' is no kind"),
        ("seed: 1\n", {**GIVEN, "task": "chose"}, [], "--task: task.kind: 'chose' is no kind"),
        ("seed: 1\n", {**GIVEN, "rows": {**GIVEN["rows"], "limit": 0}}, [], "--limit: rows.limit: wants a whole"),
        ("seed: 1\n", {**GIVEN, "task": {"labels": ["a"]}}, [], "--labels: task.labels: "),
        ("seed: 1\n", GIVEN, ["batching.tokens=0"], "--set batching.tokens=0: batching.tokens: wants"),
        ("seed: 1\n", GIVEN, ["seed"], "--set seed: this is not KEY=VALUE"),
        ("", GIVEN, [], "the file is empty"),
    ],
)
def test_a_mistake_is_told_with_its_place(
    tmp_path: Path, text: str, values: dict[str, Any], overrides: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inference_config(write(tmp_path, text), values, overrides)
    assert problem in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inference_config(write(tmp_path, "seed: -1\nmax_deaths: 0\n"), GIVEN, ["split.gpus=0"])
    text = str(caught.value)
    assert "line 1: seed" in text and "line 2: max_deaths" in text and "split.gpus" in text


def test_what_is_not_given_is_named_as_the_command_calls_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inference_config(None, {"model": {"path": "m"}})
    assert "rows.files: is not given; add --data" in str(caught.value)
    assert "output.file: is not given; add --out" in str(caught.value)
    assert "--model" not in str(caught.value)


def test_what_is_written_is_read_as_an_equal_config(tmp_path: Path) -> None:
    task = {"kind": "generate", "prompt": {"prompt": "{text}: ja?\nnein"}, "stop": ["\n"], "top_p": 0.5}
    config = load_inference_config(
        None, {**GIVEN, "task": task, "split": {"device_map": {"model.norm": 3}}}, ["seed=7"]
    )
    path = write(tmp_path, dump_inference_config(config))
    assert load_inference_config(path, {}) == config


def test_hardware_may_change_and_what_decides_answers_may_not(tmp_path: Path) -> None:
    old = load_inference_config(None, GIVEN)
    refuse_other(old, load_inference_config(None, GIVEN, ["hardware.num_processes=3", "max_restarts=0"]), "place")
    new = load_inference_config(None, GIVEN, ["seed=2", "task.temperature=1", "hardware.device=cpu"])
    assert [each.name for each in differences(old, new) if each.alters] == ["task.temperature", "seed"]
    with pytest.raises(ConfigError, match=r"kept in place:\n  task\.temperature: 0\.0 -> 1\.0\n  seed: 0 -> 2"):
        refuse_other(old, new, "place")
    with pytest.raises(ConfigError, match="kept in place: seed: 0 -> 2"):
        refuse_other(old, load_inference_config(None, GIVEN, ["seed=2"]), "place")
