"""What the video-clip adapter decides, and what its trainers do after an error or a change of the config."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline.adapters import opus_clip
from drumline.adapters.opus_clip import DataParallelTrainer, MultiGPUConfig, in_this_process, run_config
from drumline.errors import ConfigError
from drumline.hardware.records import Gpu, Hardware, Host


def machine(num_gpus: int) -> Hardware:
    gpus = tuple(Gpu(f"GPU-{index}", "NVIDIA H100", index, 80 << 30, (9, 0)) for index in range(num_gpus))
    return Hardware(gpus, Host(8, 1 << 36, "here"), "simulated")


@pytest.mark.parametrize(
    ("num_gpus", "expected", "here"),
    [
        (0, "single", "single"),
        (1, "single", "single"),
        (2, "dataparallel", "dataparallel"),
        (4, "dataparallel", "dataparallel"),
        (8, "distributed", "dataparallel"),  # one process has no world to be distributed over
    ],
)
def test_auto_goes_by_the_number_of_gpus(
    num_gpus: int, expected: str, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opus_clip, "detect", lambda: machine(num_gpus))
    assert MultiGPUConfig().chosen(num_gpus) == expected
    assert in_this_process(MultiGPUConfig()) == here


def test_one_of_several_processes_is_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opus_clip, "detect", lambda: machine(4))
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    assert in_this_process(MultiGPUConfig()) == "distributed"


def test_a_number_of_gpus_is_a_choice_among_them_and_replicas_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MultiGPUConfig(strategy="dataparallel", num_gpus=2)
    monkeypatch.setattr(opus_clip, "detect", lambda: machine(4))
    assert run_config(config, "dataparallel").hardware.count == 2
    assert run_config(config, "dataparallel").parallel.model_dump()["replicas"] is None
    monkeypatch.setattr(opus_clip, "detect", lambda: machine(0))
    assert run_config(config, "dataparallel").hardware.count is None
    assert run_config(config, "dataparallel").parallel.model_dump()["replicas"] == 2


def test_a_strategy_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'dataparalel' is none"):
        run_config(MultiGPUConfig(), "dataparalel")  # type: ignore[arg-type]


def test_an_epoch_that_fails_is_followed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    errors: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory"), ValueError("damaged")]

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        if errors and isinstance(errors[0], torch.OutOfMemoryError):
            raise errors[0]  # however small the pass is
        if errors:
            raise errors.pop()
        return nn.functional.cross_entropy(outputs, targets)

    rows = TensorDataset(torch.randn(24, 4), torch.arange(24) % 2)
    config = MultiGPUConfig(strategy="single", batch_size=8, num_workers=0)
    trainer = DataParallelTrainer(nn.Linear(4, 2), config, rows, loss_fn=loss_fn)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train_epoch(0)
    del errors[0]
    with pytest.raises(ValueError, match="damaged"):
        trainer.train_epoch(0)
    config.batch_size //= 2
    found = [trainer.train_epoch(epoch) for epoch in range(3)]
    trainer.cleanup()
    assert [each["updates"] for each in found] == [6, 6, 6]
    assert found[2]["train_loss"] < found[0]["train_loss"]
    assert len(list((tmp_path / "runs").iterdir())) == 3, "one after each error; a change of size makes no more"
