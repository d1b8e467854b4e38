"""Sections that a program makes itself."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from drumline import RunConfig, TrainConfig
from drumline.errors import ConfigError


def made(**values: Any) -> TrainConfig:
    return TrainConfig(**values)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: made(epoch=3), "TrainConfig: epoch: there is no such key\n  fix: did you mean epochs?"),
        (lambda: made(lr=-1), "TrainConfig: lr: wants a number above 0, not -1"),
        (lambda: made(optimizer={"name": "adamv"}), "TrainConfig: optimizer.name: wants adamw"),
        (lambda: RunConfig.model_validate({"train": {"epoch": 3}}), "RunConfig: train.epoch: there is no such key"),
        (lambda: RunConfig.model_validate({"parallel": {"kind": "dpp"}}), "did you mean ddp?"),
        (lambda: RunConfig.model_validate(["train"]), "RunConfig wants its keys and values, not a list of 1"),
    ],
)
def test_mistakes_are_told_as_a_recipes_are(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert told in str(raised.value)
    assert raised.value.__suppress_context__


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        made(lr="fast", epoch=1)
    assert [line.split(":")[1].strip() for line in raised.value.problem.splitlines()] == ["lr", "epoch"]


def test_sections_inside_are_taken_made_or_as_values() -> None:
    train = made(global_batch=4)
    assert RunConfig(train=train) == RunConfig.model_validate({"train": {"global_batch": 4}})
    assert pickle.loads(pickle.dumps(train)) == train


def test_inside_something_of_pydantics_the_error_is_pydantics() -> None:
    """As the body of a request, whose places a service tells."""
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(dict[str, RunConfig]).validate_python({"a": {"train": {"epoch": 1}}})
    assert raised.value.errors()[0]["loc"] == ("a", "train", "epoch")


def test_the_fields_are_the_arguments() -> None:
    assert list(inspect.signature(TrainConfig).parameters) == list(TrainConfig.model_fields)
