"""A recipe's run that goes on without a GPU, on simulated hardware."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from drumline.cli.plan import plan_run
from drumline.cli.train import without_lost
from drumline.config.kept import read_kept
from drumline.config.load import load_config
from drumline.config.schema import RunConfig
from drumline.hardware import inventory
from drumline.hardware.nvml import read_gpus
from drumline.hardware.records import Hardware, Host
from drumline.launcher.spec import LaunchSpec
from drumline.manifest import MANIFEST, Manifest
from drumline.rundir import RunDir, read_json, write_json
from tests.unit.hardware.simulated_nvml import SimulatedGpu, SimulatedNvml


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedNvml:
    """A machine with three simulated GPUs."""
    nvml = SimulatedNvml([SimulatedGpu(f"GPU-{letter}") for letter in "abc"])

    def look() -> Hardware:
        gpus, source = inventory.visible_gpus(read_gpus(nvml), {})
        return Hardware(gpus, Host(8, 1 << 35, "box"), source)

    monkeypatch.setattr(inventory, "detect", look)
    return nvml


@pytest.mark.parametrize("batch", [{"global_batch": 12}, {"batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}])
def test_the_global_batch_stays_when_a_gpu_is_left_out(
    batch: dict[str, int], simulated: SimulatedNvml, tmp_path: Path
) -> None:
    config = RunConfig.model_validate(
        {"train": {**batch, "max_steps": 3}, "parallel": {"kind": "ddp"}, "hardware": {"gpus": ["0", "1", "2"]}}
    )
    plan = plan_run(config, counts=False)
    run = RunDir.create(tmp_path / "run")
    spec = LaunchSpec(run.path, 3, "module", "drumline.worker", (str(run.path),), plan.gpus)
    del simulated.gpus[1]
    left = without_lost(spec, config, plan, ("GPU-a", "GPU-c"))
    assert (left.num_workers, left.gpus) == (2, ("GPU-a", "GPU-c"))
    anew = read_json(run.plan)
    assert (plan.world_size, plan.global_batch) == (3, 12)
    assert (anew["world_size"], anew["global_batch"], anew["gpus"]) == (2, 12, ["GPU-a", "GPU-c"])
    kept = load_config(run.config)
    assert (kept.train.global_batch, kept.hardware.gpus) == (12, ["GPU-a", "GPU-c"])
    # The recipe as it was still is this run's, for a later command.
    run.checkpoint_of(3).mkdir(parents=True)
    write_json(run.checkpoint_of(3) / MANIFEST, asdict(Manifest(3, (), 2, "ddp", "whole")))
    found = read_kept(run, config)
    assert [change.name for change in found.changes] == ["hardware.gpus"]
    assert found.global_batch == 12
