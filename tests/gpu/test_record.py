"""A run on a real GPU records it beside its losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from drumline import RunConfig, Trainer
from drumline.rundir import read_json, read_lines
from drumline.track.report import read_run, summarise

pytestmark = pytest.mark.gpu


def many_passes(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Much to compute on few rows to read, so that the GPU is busy."""
    x: torch.Tensor = batch[0].expand(-1, 4096)
    for _ in range(64):
        x = model(x)
    return x.square().mean()


def test_a_run_records_its_gpu(tmp_path: Path) -> None:
    width = 4096
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    rows = torch.utils.data.TensorDataset(torch.randn(1024, 1))
    config = RunConfig.model_validate(
        {
            "run_dir": tmp_path / "run",
            "parallel": {"kind": "single"},
            "train": {"global_batch": 1024, "micro_batch": 1024, "epochs": 200, "lr": 1e-7},
            "track": {"console": False, "every": 20},
            "checkpoint": {"at_end": False},
            "monitor": {"record_every_s": 2.0, "price_per_kwh": 0.3, "price_per_gpu_hour": 2.0},
        }
    )
    with Trainer(model, config, rows, loss=many_passes) as trainer:
        trainer.fit()
        [recorder] = [child for child in psutil.Process().children() if "drumline.monitor.record" in child.cmdline()]
        cost_s = sum(recorder.cpu_times()[:2])
    assert not recorder.is_running()
    lines: list[dict[str, Any]] = list(read_lines(tmp_path / "run/metrics.jsonl"))
    gpus = [line for line in lines if line["kind"] == "gpu"]
    losses = [line for line in lines if line["kind"] == "train"]
    (uuid,) = read_json(tmp_path / "run/plan.json")["gpus"]
    assert gpus
    assert all(list(line["gpus"]) == [uuid] for line in gpus)
    assert max(line["gpus"][uuid]["utilization"]["max"] for line in gpus) > 0.5
    assert gpus[-1]["gpus"][uuid]["memory_used_bytes"]["max"] >= losses[-1]["memory_peak_bytes"][0]
    assert losses[-1]["elapsed_s"] == pytest.approx(gpus[-1]["elapsed_s"], abs=5.0)
    summary = summarise(read_run(tmp_path / "run"))
    assert summary.energy_j is not None
    assert summary.energy_j > 0
    assert not [event for event in read_lines(tmp_path / "run/events.jsonl") if event["event"] == "alert"]
    print(
        f"recorder: {cost_s:.2f} s of CPU in {gpus[-1]['elapsed_s']:.1f} s; {len(gpus)} lines; {summary.energy_j:.0f} J"
    )
