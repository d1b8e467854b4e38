"""Profiles and phases on a GPU: kernels are seen, told apart and add up. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import RunConfig, Trainer, benchmark_multi_gpu_performance
from drumline.parallel.strategy import Batch
from drumline.rundir import read_json

pytestmark = [pytest.mark.gpu]

WIDTH = 1024


def rows(count: int = 512) -> TensorDataset:
    """x and y [count, WIDTH]."""
    x = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x.roll(1, 1))


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    """Mean over a batch."""
    error: Tensor = (model(batch[0]) - batch[1]).square().mean()
    return error


def config_of(directory: Path | None, **train: Any) -> RunConfig:
    """Batches of 64 on one GPU, in this process."""
    return RunConfig.model_validate(
        {
            "run_dir": directory,
            "train": {"global_batch": 64, "max_steps": 16, "schedule": {"name": "constant"}, **train},
            "loader": {"num_workers": 0},
            "monitor": {"record": False},
            "checkpoint": {"at_end": False},
            "track": {"console": False},
            "parallel": {"kind": "single"},
        }
    )


def model_of() -> nn.Module:
    """Two wide layers."""
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def test_a_profile_on_a_gpu_is_of_its_kernels(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", profile={"start": 8, "steps": 4})
    with Trainer(model_of(), config, rows(), loss=squared_error) as trainer:
        trainer.fit()
    found = read_json(tmp_path / "run/profile/profile.json")
    assert (found["first"], found["last"], found["device"], found["timed"]) == (9, 12, "cuda", "before")
    [parts] = found["breakdown"]
    whole = parts["compute_s"] + parts["exposed_s"] + parts["loader_s"] + parts["host_s"]
    assert whole == pytest.approx(parts["step_s"])
    # Six products of 2 * 64 * 1024 * 4096 operations an update cannot be done faster than at 2 PFLOP/s.
    assert parts["compute_s"] > 6 * 2 * 64 * 1024 * 4096 / 2e15
    assert parts["exposed_s"] == parts["communication_s"] == 0.0
    assert sum(kernel["calls"] for kernel in found["kernels"]) >= 6
    assert not any("HtoD" in kernel["name"] for kernel in found["kernels"])
    assert any(operator["name"].startswith("aten::") for operator in found["operators"])


def test_watching_on_a_gpu_changes_no_number(tmp_path: Path) -> None:
    weights = []
    for name, profile in (("plain", None), ("watched", {"start": 3, "steps": 2})):
        torch.manual_seed(0)
        model = model_of()
        with Trainer(model, config_of(tmp_path / name, profile=profile), rows(), loss=squared_error) as trainer:
            trainer.fit()
        weights.append({key: value.cpu() for key, value in model.state_dict().items()})
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_a_users_model_is_timed_on_the_gpu() -> None:
    found = benchmark_multi_gpu_performance(model_of(), rows(), config_of(None), loss=squared_error)
    assert 0 < found["updates"] <= 16  # without those that warm up
    parts = [found[f"{name}_time"] for name in ("forward", "backward", "optimizer")]
    assert all(part > 0 for part in parts) and sum(parts) < 3 * found["step_time"]
    usage = found["gpu_utilization"]
    assert usage["gpu_info"]["count"] == 1 and usage["memory_usage"]["gpu_0"]["peak_allocated_bytes"] > 8 * WIDTH**2 * 4
