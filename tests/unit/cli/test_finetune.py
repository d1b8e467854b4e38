"""How `drumline finetune` shows what it chose."""

from __future__ import annotations

import json

import pytest

from drumline.cli.finetune import name_of, print_choice
from drumline.config.load import config_from_mapping
from drumline.config.schema import RunConfig

REASONS = {
    "train.lr": "usual",
    "model.adapter": "too large",
    "data.columns": "other names",
    "train.optimizer.betas": "as published",
    "data.eval_fraction": "none are named",
}


@pytest.fixture
def config() -> RunConfig:
    """A chosen one."""
    return config_from_mapping(
        {
            "model": {"kind": "huggingface", "path": "m", "adapter": {"rank": 8}},
            "data": {"kind": "records", "train": ["a.csv"], "columns": {"text": "body"}, "eval_fraction": 0.05},
            "train": {"lr": 2e-4, "epochs": 1},
        },
        "here",
    )


def test_a_line_a_setting_with_its_value_and_reason(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    print_choice(config, REASONS, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["train.lr", "0.0002", "usual"],
        ["model.adapter", "lora,", "rank:", "8", "too", "large"],
        ["data.columns", "text:", "body", "other", "names"],
        ["train.optimizer.betas", "0.9,", "0.95", "as", "published"],
        ["data.eval_fraction", "0.05", "none", "are", "named"],
    ]


def test_no_adapter_is_none(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    model = config.model.model_copy(update={"adapter": None})
    print_choice(config.model_copy(update={"model": model}), {"model.adapter": "it fits"}, as_json=False)
    assert capsys.readouterr().out.split() == ["model.adapter", "none", "it", "fits"]


def test_json_has_the_whole_config(config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    print_choice(config, REASONS, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert RunConfig.model_validate(found["config"]) == config and found["reasons"] == REASONS


@pytest.mark.parametrize(
    ("model", "name"), [("models/my llama/", "my-llama"), ("org/Name-1.5B", "Name-1.5B"), ("..", "model")]
)
def test_a_run_is_named_after_its_model(model: str, name: str) -> None:
    assert name_of(model) == name
