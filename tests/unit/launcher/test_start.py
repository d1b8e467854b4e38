from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.config.schema import HardwareConfig
from drumline.errors import HardwareError
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.launcher.spec import LaunchSpec
from drumline.launcher.start import Workers, choose_workers, launch_directory

HOST = Host(cpu_cores=8, memory_bytes=2**34, hostname="box")
CPU = Hardware((), HOST, "no NVIDIA driver")
GPUS = Hardware(
    tuple(Gpu(f"GPU-{index}", "NVIDIA H100", index, 2**36, (9, 0)) for index in range(4)), HOST, "nvml 580.159"
)


@pytest.mark.parametrize(
    ("config", "hardware", "workers"),
    [
        (HardwareConfig(), CPU, Workers(1, ())),
        (HardwareConfig(num_processes=3), CPU, Workers(3, ())),
        (HardwareConfig(), GPUS, Workers(4, ("GPU-0", "GPU-1", "GPU-2", "GPU-3"))),
        (HardwareConfig(num_processes=2), GPUS, Workers(4, ("GPU-0", "GPU-1", "GPU-2", "GPU-3"))),
        (HardwareConfig(gpus=["2", "GPU-0"]), GPUS, Workers(2, ("GPU-2", "GPU-0"))),
        (HardwareConfig(device="cpu", num_processes=6), GPUS, Workers(6, ())),
    ],
)
def test_choose_workers(config: HardwareConfig, hardware: Hardware, workers: Workers) -> None:
    assert choose_workers(config, hardware) == workers


@pytest.mark.parametrize(
    ("config", "hardware", "problem"),
    [
        (HardwareConfig(device="cuda"), CPU, "no GPU is visible"),
        (HardwareConfig(gpus=["7"]), GPUS, "7"),
        (HardwareConfig(count=2), CPU, r"hardware.count=2, but no GPU is visible \(no NVIDIA driver\)"),
        (HardwareConfig(count=2, device="cpu"), GPUS, "hardware.count=2, but hardware.device=cpu"),
    ],
)
def test_workers_that_the_machine_has_no_gpu_for(config: HardwareConfig, hardware: Hardware, problem: str) -> None:
    with pytest.raises(HardwareError, match=problem):
        choose_workers(config, hardware)


def test_launch_directories_are_new_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [launch_directory("my script") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all(run.path.parent == Path("runs/launch") and run.path.name.startswith("my_script-2") for run in runs)
    assert all(run.logs.is_dir() for run in runs)


@pytest.mark.parametrize("gpus", [None, (), ("GPU-1", "GPU-0")])
def test_a_spec_reads_back_equal(tmp_path: Path, gpus: tuple[str, ...] | None) -> None:
    (tmp_path / "logs").mkdir()
    spec = LaunchSpec(tmp_path, 2, "script", "train.py", ("--lr", "0.1"), gpus, failure_grace_s=1.5)
    path = spec.write("an-id")
    assert LaunchSpec.read(path) == (spec, "an-id")
    assert json.loads(path.read_text())["target"] == "train.py"
