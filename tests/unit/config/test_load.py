"""Defaults, then a recipe, then overrides; and back to YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.config.data import RandomTokens, RecordData, TextData, WeightedPaths
from drumline.config.load import config_from_mapping, dump_config, load_config
from drumline.config.model import DecoderModel, HuggingFaceModel
from drumline.config.parallel import AutoParallel, DdpParallel, SingleParallel
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError


def load(tmp_path: Path, text: str, *overrides: str) -> RunConfig:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def test_without_recipe_and_overrides_there_are_the_defaults() -> None:
    assert load_config(None) == RunConfig()


def test_overrides_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path: Path) -> None:
    config = load(
        tmp_path, "seed: 1\ntrain: {lr: 0.1, epochs: 2}\n", "train.lr=0.2", "train.global_batch=8", "train.lr=0.3"
    )
    assert (config.seed, config.train.lr, config.train.epochs, config.train.global_batch) == (1, 0.3, 2, 8)
    assert config.train.micro_batch == "auto"


@pytest.mark.parametrize("text", ["3e-4", "0.0003", "3.0e-4", "'3e-4'", "3E-04"])
def test_a_float_may_be_spelt_in_every_usual_way(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, f"train: {{lr: {text}}}").train.lr == 3e-4
    assert load_config(None, [f"train.lr={text}"]).train.lr == 3e-4


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "true", "1.10", "007", "2024-01-02", "1e5"])
def test_where_text_is_wanted_a_scalar_is_what_was_typed(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, f"name: {word}").name == word
    assert load_config(None, [f"name={word}"]).name == word


@pytest.mark.parametrize(
    ("word", "value"), [("yes", True), ("on", True), ("true", True), ("no", False), ("off", False)]
)
def test_where_a_boolean_is_wanted_its_words_are_taken(tmp_path: Path, word: str, value: bool) -> None:
    assert load(tmp_path, f"train: {{shuffle: {word}}}").train.shuffle is value


def test_lists_are_yaml_in_overrides_too(tmp_path: Path) -> None:
    config = load(tmp_path, "hardware: {gpus: [0, GPU-abc]}", "train.optimizer.betas=[0.8, 0.9]")
    assert config.hardware.gpus == ["0", "GPU-abc"]
    assert config.train.optimizer.betas == (0.8, 0.9)
    assert load(tmp_path, "hardware: {gpus: [0]}", "hardware.gpus=[1, 2]").hardware.gpus == ["1", "2"]


def test_a_value_may_hold_equals_signs_and_colons() -> None:
    config = load_config(None, ["data.kind=text", "data.train=[recipes:a/b=c.txt]", "run_dir=a=b"])
    assert isinstance(config.data, TextData)
    assert config.data.train == ["recipes:a/b=c.txt"]
    assert config.run_dir == Path("a=b")


def test_null_takes_a_setting_back(tmp_path: Path) -> None:
    config = load(tmp_path, "train: {max_norm: 2.0}\nevaluate: {early_stopping: {patience: 1}}", "train.max_norm=null")
    assert config.train.max_norm is None
    assert load(tmp_path, "evaluate: {early_stopping: {}}", "evaluate.early_stopping=").evaluate.early_stopping is None


def test_a_section_without_kind_is_of_the_default_kind(tmp_path: Path) -> None:
    config = load(tmp_path, "model: {width: 64}\nparallel: {timeout_s: 5}")
    assert config.model == DecoderModel(width=64)
    assert config.parallel == AutoParallel(timeout_s=5)


def test_an_override_chooses_the_kind(tmp_path: Path) -> None:
    assert load(tmp_path, "seed: 1", "parallel.kind=ddp", "parallel.bucket_mb=5").parallel == DdpParallel(bucket_mb=5)
    kept = load(tmp_path, "parallel: {kind: ddp, timeout_s: 7}", "parallel.kind=single").parallel
    assert kept == SingleParallel(timeout_s=7)


def test_a_source_is_a_path_or_a_section_with_a_weight(tmp_path: Path) -> None:
    text = "data: {kind: records, train: [1.10, {paths: [2024], weight: 0.5}], columns: {label: 3}}"
    data = load(tmp_path, text).data
    assert isinstance(data, RecordData)
    assert data.train == ["1.10", WeightedPaths(paths=["2024"], weight=0.5)]
    assert data.columns == {"label": "3"}


def test_a_section_given_whole_replaces_the_recipes(tmp_path: Path) -> None:
    config = load(tmp_path, "parallel: {kind: ddp, bucket_mb: 9}", "parallel={kind: single}")
    assert config.parallel == SingleParallel()


def test_a_mapping_is_loaded_as_a_recipe_is_and_left_as_it_was() -> None:
    given = {"train": {"lr": 0.5}, "hardware": {"gpus": [0]}, "parallel": {"timeout_s": 3}}
    config = config_from_mapping(given, "the request")
    assert (config.train.lr, config.hardware.gpus, config.parallel.kind) == (0.5, ["0"], "auto")
    assert given == {"train": {"lr": 0.5}, "hardware": {"gpus": [0]}, "parallel": {"timeout_s": 3}}


def test_errors_of_a_mapping_name_its_source() -> None:
    with pytest.raises(ConfigError, match=r"the request: train\.gloabl_batch: .*\n.*train\.global_batch"):
        config_from_mapping({"train": {"gloabl_batch": 3}}, "the request")


CONFIGS: list[dict[str, Any]] = [
    {},
    {"name": "on", "run_dir": "runs/a b: #c", "seed": 3},
    {"name": "1.10", "hardware": {"gpus": ["0", "1e5", "GPU-x", "007"]}},
    {"name": "2024-01-02", "train": {"lr": 1e-12, "global_batch": 7, "max_norm": None, "micro_batch": 3}},
    {"data": {"kind": "text", "train": ["*.txt", "ä/ü.txt", "a: b", "- c", "", "'", "x" * 300], "eval": ["~", "null"]}},
    {"data": RandomTokens(), "parallel": DdpParallel(find_unused="never"), "train": {"epochs": 1, "compile": "blocks"}},
    {"data": RecordData(train=["a", WeightedPaths(paths=["b"], weight=2)], columns={"label": "topic: x"})},
    {"train": {"optimizer": {"rules": [{"pattern": "*.bias", "freeze": True}]}, "schedule": {"options": {"a": [1]}}}},
    {"model": HuggingFaceModel(path="here"), "evaluate": {"every": 10, "early_stopping": {"mode": "max"}}},
]


@pytest.mark.parametrize("values", CONFIGS)
def test_a_dumped_config_loads_back_equal(tmp_path: Path, values: dict[str, Any]) -> None:
    config = RunConfig(**values)
    text = dump_config(config)
    assert load(tmp_path, text) == config
    assert RunConfig.model_validate(yaml.safe_load(text)) == config, "a YAML 1.1 reader sees the same"


@pytest.mark.parametrize("value", [".inf", ".nan", "1e999"])
def test_a_number_that_is_not_finite_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="wants a number above 0"):
        load_config(None, [f"train.lr={value}"])
