"""The config that a run's checkpoints are evaluated by."""

from __future__ import annotations

from typing import Any

import pytest

from drumline import RunConfig
from drumline.config.evaluation import evaluation_config
from drumline.errors import ConfigError

TEXT = {"kind": "text", "train": ["a.txt"], "eval": ["b.txt"]}


def config_of(data: dict[str, Any] | None, **sections: Any) -> RunConfig:
    return RunConfig.model_validate({"data": data, **sections})


def test_model_task_and_data_stay_and_nothing_is_kept() -> None:
    config = config_of(TEXT, name="x", train={"compile": "auto", "averaging": {"kind": "ema"}, "max_time_s": 9.0})
    found = evaluation_config(config, batch=6)
    assert (found.model, found.data, found.task, found.seed) == (config.model, config.data, config.task, config.seed)
    assert (found.train.averaging, found.train.compile) == (config.train.averaging, "none")
    assert (found.name, found.train.max_time_s, found.train.micro_batch, found.evaluate.batch) == (None, None, 1, 6)
    assert not found.checkpoint.at_end and not found.monitor.record and not found.track.console


def test_a_batch_that_the_config_states_counts() -> None:
    config = config_of(TEXT, evaluate={"batch": 3}, train={"batch_size_per_gpu": 4})
    found = evaluation_config(config, batch=6)
    assert (found.evaluate.batch, found.train.micro_batch) == (3, "auto")


def test_other_files_take_the_place_of_the_held_out_ones() -> None:
    data: Any = evaluation_config(config_of({**TEXT, "eval": [], "eval_fraction": 0.1}), ["c.txt"]).data
    assert (data.eval, data.eval_fraction) == (["c.txt"], 0.0)
    data = evaluation_config(config_of({"kind": "records", "train": ["a.csv"], "eval": ["b.csv"]})).data
    assert (data.eval, data.check) == (["b.csv"], False)


@pytest.mark.parametrize(
    ("data", "files", "problem"),
    [
        ({**TEXT, "eval": []}, [], "no held-out data"),
        ({"kind": "random_tokens"}, ["c.txt"], "random_tokens has no held-out files"),
        (None, ["c.txt"], "no data section"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(data: Any, files: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        evaluation_config(config_of(data), files)
