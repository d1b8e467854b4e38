"""A recipe's run that goes on without a GPU, on simulated hardware."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from drumline.cli.plan import plan_run
from drumline.cli.train import without_lost
from drumline.config.kept import read_kept
from drumline.config.load import load_config
from drumline.config.schema import RunConfig
from drumline.errors import HardwareError
from drumline.hardware import claims
from drumline.hardware.claims import Claims
from drumline.launcher.spec import LaunchSpec
from drumline.manifest import MANIFEST, Manifest
from drumline.rundir import RunDir, read_json, write_json
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedNvml:
    """A machine with three simulated GPUs, of which nobody has claimed any."""
    nvml = SimulatedNvml([SimulatedGpu(f"GPU-{letter}") for letter in "abc"])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(claims, "FOLDER", tmp_path / "claims")
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


def test_the_plan_of_a_run_claims_its_gpus_and_tells_of_the_others(
    simulated: SimulatedNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig.model_validate({"train": {"global_batch": 4, "max_steps": 1}, "parallel": {"kind": "ddp"}})
    simulated.gpus[2].processes.append(SimulatedProcess(999_999))
    with Claims("runs/a") as mine, Claims("runs/b") as others, Claims("runs/c") as third:
        plan = plan_run(config, counts=False, claims=mine)
        assert (plan.world_size, plan.gpus, mine.held) == (2, ("GPU-a", "GPU-b"), ("GPU-a", "GPU-b"))
        assert "; left out: GPU 2 (GPU-c): taken: process 999999" in plan.reasons["gpus"]
        simulated.gpus[2].processes.clear()
        # Only planned: it is told what a run would get now, and takes nothing.
        assert plan_run(config, counts=False).gpus == ("GPU-c",)
        assert plan_run(config, counts=False, claims=others).gpus == ("GPU-c",)
        with pytest.raises(HardwareError, match=r"none of 3 can be used: GPU 0 .* for runs/a; .* for runs/b"):
            plan_run(config, counts=False, claims=third)
        assert plan_run(config, counts=False).world_size == 3
        assert "it could not start now: a GPU is asked for, and none of 3 can be used" in capsys.readouterr().err


def test_a_restart_does_not_choose_anew(simulated: SimulatedNvml, tmp_path: Path) -> None:
    section = {"count": 3}
    config = RunConfig.model_validate(
        {"train": {"global_batch": 4, "max_steps": 1}, "parallel": {"kind": "ddp"}, "hardware": section}
    )
    with Claims("runs/a") as mine:
        plan = plan_run(config, counts=False, claims=mine)
        run = RunDir.create(tmp_path / "run")
        spec = LaunchSpec(run.path, 3, "module", "drumline.worker", (str(run.path),), plan.gpus)
        simulated.gpus[0].processes.append(SimulatedProcess(999_999))  # a worker of ours, not dead yet
        simulated.calls.clear()
        left = without_lost(spec, config, plan, ("GPU-a", "GPU-c"))
    assert (left.num_workers, left.gpus) == (2, ("GPU-a", "GPU-c"))
    assert not simulated.calls["nvmlDeviceGetComputeRunningProcesses"]
    assert load_config(run.config).hardware.count is None
