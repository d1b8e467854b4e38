"""A checkpoint that is evaluated again, on any number of ranks, gives what the run itself had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline import RunConfig, Trainer
from drumline.build.evaluate import RESULT, main
from drumline.build.parts import build_parts
from drumline.config.evaluation import evaluation_config
from drumline.config.load import dump_config
from drumline.rundir import RunDir, read_json, write_atomic
from tests.rank_pool import RankPool


def config_of(directory: Path, kind: str) -> RunConfig:
    """Four updates with a running average, and 11 held-out rows."""
    return RunConfig.model_validate(
        {
            "run_dir": directory,
            "model": {"kind": "decoder", "num_layers": 1, "num_heads": 2, "width": 16},
            "data": {"kind": "random_tokens", "num_rows": 16, "num_eval_rows": 11, "context": 8, "vocab_size": 40},
            "train": {"global_batch": 4, "max_steps": 4, "lr": 0.01, "averaging": {"kind": "ema", "decay": 0.5}},
            "parallel": {"kind": kind, "timeout_s": 20, **({"min_params": 100} if kind == "fsdp" else {})},
            "track": {"console": False},
            "monitor": {"record": False},
            "hardware": {"device": "cpu"},
        }
    )


def train(directory: str) -> dict[str, float]:
    """The run's own last evaluation."""
    config = config_of(Path(directory), "single")
    built = build_parts(config)
    with Trainer(built.model, config, built.train, **built.options) as trainer:
        found = trainer.fit().evaluation
    assert found is not None
    return {name: value for name, value in found.items() if name != "step"}


def evaluate(directory: str, checkpoint: str) -> None:
    """As the command's workers do."""
    main(Path(directory), Path(checkpoint))


@pytest.mark.parametrize(("world", "kind"), [(1, "single"), (2, "ddp"), (2, "fsdp")])
def test_the_numbers_are_those_of_the_run(ranks: RankPool, tmp_path: Path, world: int, kind: str) -> None:
    (expected,) = ranks.run(1, train, str(tmp_path / "run"))
    again = RunDir.create(tmp_path / "again")
    config: Any = evaluation_config(config_of(tmp_path / "run", kind), batch=3)
    write_atomic(again.config, dump_config(config))
    checkpoint = RunDir(tmp_path / "run").checkpoint_of(4)
    ranks.run(world, evaluate, str(again.path), str(checkpoint))
    found = read_json(again.path / RESULT)
    assert found == pytest.approx(expected, abs=1e-6)
    assert found["count"] == 11
    assert not again.checkpoints.exists()
