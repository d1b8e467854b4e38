"""Between two log lines nothing makes the host wait for a GPU, on one GPU or all. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import drumline
from tests.gpu.syncs import LOG_EVERY, WARM_UP, waits_of
from tests.ranks.training import fresh

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

SETTINGS: list[dict[str, Any]] = [
    {"precision": "bf16", "micro_batch": 2},
    {"precision": "bf16", "micro_batch": 2, "non_finite": "skip", "schedule": {"name": "cosine"}},
    {"precision": "fp16"},
    {"precision": "fp32", "averaging": {"kind": "ema"}, "optimizer": {"name": "sgd", "momentum": 0.9}},
]
NAMES = ["accumulated", "skip", "fp16", "averaged"]


@pytest.mark.parametrize("train", SETTINGS, ids=NAMES)
def test_one_gpu(tmp_path: Path, train: dict[str, Any]) -> None:
    assert waits_of(fresh(tmp_path), train, {"kind": "single"}) == []


@pytest.mark.parametrize("compression", ["none", "bf16", "fp16", "power_sgd"])
def test_every_gpu(tmp_path: Path, compression: str) -> None:
    train = {"precision": "bf16", "micro_batch": 2, "non_finite": "skip"}
    parallel: dict[str, Any] = {"kind": "ddp", "compression": compression}
    if compression == "power_sgd":
        parallel["power_sgd_start"] = 1
    for waits in drumline.launch(waits_of, (fresh(tmp_path), train, parallel)):
        assert waits == []


def test_a_wait_of_the_user_is_seen(tmp_path: Path) -> None:
    waits = waits_of(fresh(tmp_path), SETTINGS[0], {"kind": "single"}, reads=True)
    assert f"cudaStreamSynchronize {LOG_EVERY - 1 - WARM_UP}x" in waits
