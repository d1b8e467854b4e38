"""Between two log lines the loop asks for no tensor's value: on a GPU each of these would make the host wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from drumline import Trainer
from drumline.parallel.strategy import Batch
from tests.rank_pool import RankPool
from tests.ranks.training import WIDTH, Case, MaskedRows, config_of, fresh

WARM_UP, LOG_EVERY = 3, 10
ASKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""torch's own marks of an operation whose result the host must see (item, equal), or its size (nonzero)."""


class Questions(TorchDispatchMode):
    """Names of the operations that ask the device for something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if ASKS & set(func.tags):
            self.asked.append(str(func))
        return func(*args, **(kwargs or {}))


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    error: Tensor = (model(batch["x"].float()).squeeze(-1) - batch["y"].float()).square() * batch["mask"]
    return error.mean()


def questions_asked(directory: str, train: Mapping[str, Any], parallel: Mapping[str, Any], reads: bool) -> list[str]:
    """What a run asks between its warm-up and its log line; `reads`: the user asks once an update himself."""
    settings = {"global_batch": 8, "max_steps": LOG_EVERY, "optimizer": {"name": "adamw"}, **train}
    config = config_of(
        Case(directory, {"train": settings, "parallel": {"kind": "auto", "timeout_s": 20, **parallel}}),
        track={"every": LOG_EVERY, "console": False, "gradient_noise": "micro_batch" in train},
    )
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1))
    questions = Questions()
    with Trainer(model, config, MaskedRows(200), loss=squared_error) as trainer:
        steps = trainer.steps()
        for _ in range(WARM_UP):
            next(steps)
        with questions:
            for _ in range(WARM_UP, LOG_EVERY - 1):
                assert next(steps).logged is None
                if reads:
                    float(next(model.parameters()).detach().sum())
        assert next(steps).logged is not None
    return questions.asked


SETTINGS: list[dict[str, Any]] = [
    {"max_norm": 1.0},
    {"max_norm": 1.0, "micro_batch": 2},
    {"max_norm": 1.0, "precision": "bf16"},
    {"max_norm": 1.0, "precision": "fp16", "micro_batch": 2},
    {"max_norm": 1.0, "non_finite": "skip", "schedule": {"name": "cosine"}},
    {"max_norm": None, "optimizer": {"name": "sgd", "momentum": 0.9}, "averaging": {"kind": "ema"}},
]
NAMES = ["clipped", "accumulated", "bf16", "fp16", "skip", "averaged"]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("train", SETTINGS, ids=NAMES)
def test_a_run_asks_for_nothing(ranks: RankPool, tmp_path: Path, world: int, train: dict[str, Any]) -> None:
    assert ranks.run(world, questions_asked, fresh(tmp_path), train, {}, False) == [[]] * world


@pytest.mark.parametrize("compression", ["bf16", "fp16", "power_sgd"])
def test_compression_asks_for_nothing(ranks: RankPool, tmp_path: Path, compression: str) -> None:
    parallel: dict[str, Any] = {"kind": "ddp", "compression": compression}
    if compression == "power_sgd":
        parallel |= {"power_sgd_rank": 1, "power_sgd_start": 1}
    train = {"precision": "fp16", "max_norm": 1.0}
    assert ranks.run(2, questions_asked, fresh(tmp_path), train, parallel, False) == [[], []]


def test_a_question_of_the_user_is_seen(ranks: RankPool, tmp_path: Path) -> None:
    ((*asked,),) = ranks.run(1, questions_asked, fresh(tmp_path), {}, {}, True)
    assert asked == ["aten._local_scalar_dense.default"] * (LOG_EVERY - 1 - WARM_UP)
