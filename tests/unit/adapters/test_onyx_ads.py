"""What the ads service's adapter decides: which settings it makes, what it refuses, what it does without GPUs."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from drumline.adapters import onyx_ads
from drumline.adapters.onyx_ads import (
    DataParallelTrainer,
    DistributedDataParallelTrainer,
    GPUConfig,
    GPUMonitor,
    MultiGPUTrainingManager,
    OptimizedFineTuningService,
    run_config,
)
from drumline.errors import ConfigError, HardwareError, LaunchError
from drumline.jobs.finetuning import FineTuningService
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess

GIB = 1 << 30


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> SimulatedNvml:
    """A machine with two GPUs, on the second of which a stranger computes."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    own = SimulatedProcess(os.getpid(), 20 * GIB)
    free = SimulatedGpu("GPU-aaaa", memory_bytes=80 * GIB, memory_used_bytes=20 * GIB, processes=[own])
    taken = SimulatedGpu("GPU-bbbb", processes=[SimulatedProcess(4_000_000)])
    free.values["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=97, memory=40)
    nvml = SimulatedNvml([free, taken])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without GPU, and an empty folder."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)


def test_the_table_of_the_document_holds() -> None:
    assert GPUConfig().model_dump() == {
        **{"use_multi_gpu": True, "gpu_ids": [], "distributed_training": False, "backend": "nccl"},
        **{"batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "sync_batch_norm": True},
        **{"mixed_precision": True, "memory_fraction": 0.9},
    }


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"backend": "mpi"}, "backend"),
        ({"batch_size_per_gpu": 0}, "batch_size_per_gpu"),
        ({"memory_fraction": 1.5}, "memory_fraction"),
        ({"gpu_ids": [-1]}, "gpu_ids"),
        ({"batch_size": 8}, "batch_size_per_gpu"),
    ],
)
def test_a_value_that_the_table_does_not_have_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        GPUConfig(**values)


def test_settings_without_a_gpu(no_gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    config = GPUConfig(gpu_ids=[0, 1], gradient_accumulation_steps=2, mixed_precision=False)
    found = run_config(config, "ddp")
    assert (found.train.batch_size_per_gpu, found.train.gradient_accumulation_steps) == (8, 2)
    assert (found.train.precision, found.parallel.kind, found.parallel.backend) == ("fp32", "ddp", "auto")
    assert found.hardware.gpus is None and found.hardware.memory_fraction == 1.0
    assert getattr(found.parallel, "sync_batch_norm") is False  # noqa: B009  # it needs GPUs
    assert "gpu_ids: this machine has no GPU" in caplog.text


def test_settings_with_gpus(two_gpus: SimulatedNvml) -> None:
    found = run_config(GPUConfig(gpu_ids=[1, 0], backend="gloo"), "ddp")
    assert found.hardware.gpus == ["GPU-bbbb", "GPU-aaaa"] and found.hardware.memory_fraction == 0.9
    assert (found.train.precision, found.parallel.backend) == ("auto", "gloo")
    assert getattr(found.parallel, "sync_batch_norm") is True  # noqa: B009
    assert run_config(GPUConfig(gpu_ids=[1, 0]), "single").hardware.gpus == ["GPU-bbbb"]
    with pytest.raises(HardwareError, match="2"):
        run_config(GPUConfig(gpu_ids=[0, 2]), "data_parallel")


def test_only_free_gpus_are_detected(two_gpus: SimulatedNvml) -> None:
    config = MultiGPUTrainingManager().detect_gpu_configuration()
    assert (config.use_multi_gpu, config.gpu_ids, config.backend) == (False, [0], "nccl")
    two_gpus.gpus[0].processes.append(SimulatedProcess(4_000_001))
    with pytest.raises(HardwareError, match="none of 2 can be used"):
        MultiGPUTrainingManager().detect_gpu_configuration()


def test_a_manager_makes_trainers_by_what_it_found(no_gpu: None) -> None:
    manager = MultiGPUTrainingManager()
    trainer = manager.setup_trainer()
    assert type(trainer) is DataParallelTrainer and trainer.kind == "single"
    assert trainer.gpu_config == GPUConfig(use_multi_gpu=False, backend="gloo")
    assert manager.setup_trainer(distributed=True).kind == "ddp"
    assert DataParallelTrainer().kind == "data_parallel"
    assert manager.get_gpu_stats()["available_gpus"] == []


def test_an_epoch_has_the_numbers_of_a_loop_by_hand(no_gpu: None) -> None:
    """The mean over the samples, with an accumulation that does not divide them, and with rows as they stand."""
    torch.manual_seed(0)
    rows, targets = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 2, (20,))
    model = nn.Linear(4, 2, dtype=torch.float64)
    other = nn.Linear(4, 2, dtype=torch.float64)
    other.load_state_dict(model.state_dict())
    trainer = DataParallelTrainer(GPUConfig(batch_size_per_gpu=4, gradient_accumulation_steps=2))
    trainer.setup_model(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = trainer.setup_dataloader(TensorDataset(rows, targets), shuffle=False)

    async def epochs() -> list[dict[str, Any]]:
        return [await trainer.train_epoch(loader, epoch) for epoch in range(2)]

    found = asyncio.run(epochs())
    trainer.cleanup()
    own, optimizer = [], torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        losses = []
        for start in (0, 8, 16):
            part = slice(start, start + 8)
            loss = nn.functional.cross_entropy(other(rows[part]), targets[part])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item() * len(targets[part]))
        own.append(sum(losses) / 20)
    assert [each["loss"] for each in found] == pytest.approx(own, rel=1e-9)
    assert [(each["epoch"], each["samples"], each["updates"]) for each in found] == [(0, 20, 3), (1, 20, 3)]
    assert torch.allclose(model.weight, other.weight, rtol=1e-9, atol=0)


class Own(nn.Module):
    """A model with a loss of its own, as Hugging Face's have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> Any:
        return SimpleNamespace(loss=(self.layer(inputs).squeeze(1) - labels).square().mean())


def test_a_model_with_its_own_loss_trains_and_goes_on_from_its_file(no_gpu: None) -> None:
    rows = [{"inputs": torch.randn(2), "labels": torch.zeros(())} for _ in range(8)]
    trainer, model = DataParallelTrainer(GPUConfig(use_multi_gpu=False)), Own()
    trainer.setup_model(model)
    first = asyncio.run(trainer.train_epoch(trainer.setup_dataloader(rows), 0))
    with torch.no_grad():
        expected = sum((model.layer(row["inputs"]) - row["labels"]).square().item() for row in rows) / 8
    assert first["loss"] == pytest.approx(expected, rel=1e-2) and first["updates"] == 1
    trainer.save_checkpoint("folder/it.pt", epoch=3)
    kept = model.layer.weight.detach().clone()
    asyncio.run(trainer.train_epoch(trainer.setup_dataloader(rows), 1))
    assert not torch.equal(model.layer.weight, kept)
    assert trainer.load_checkpoint("folder/it.pt") == 3 and torch.equal(model.layer.weight, kept)
    trainer.cleanup()


def test_a_loaders_own_batch_size_counts(no_gpu: None) -> None:
    trainer = DataParallelTrainer(GPUConfig(batch_size_per_gpu=8, mixed_precision=False))
    trainer.setup_model(nn.Linear(2, 2), loss_fn=nn.functional.mse_loss)
    rows = TensorDataset(torch.ones(64, 2), torch.ones(64, 2))
    found = asyncio.run(trainer.train_epoch(trainer.setup_dataloader(rows, batch_size=32), 0))
    trainer.cleanup()
    assert found["updates"] == 2


def test_a_cancelled_epoch_ends_after_its_update(no_gpu: None) -> None:
    seen, go_on = threading.Event(), threading.Event()

    def slow(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.set()
        assert go_on.wait(30)
        return outputs.sum() * 0 + targets.sum() * 0

    trainer, model = DataParallelTrainer(GPUConfig(batch_size_per_gpu=1, use_multi_gpu=False)), nn.Linear(2, 1)
    trainer.setup_model(model, loss_fn=slow)
    loader = trainer.setup_dataloader(TensorDataset(torch.ones(100_000, 2), torch.ones(100_000)))

    async def cancelled() -> None:
        task = asyncio.create_task(trainer.train_epoch(loader, 0))
        while not seen.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(cancelled(), 60))  # all of the epoch would take minutes
    trainer.cleanup()


def test_a_trainer_needs_its_model_first() -> None:
    with pytest.raises(ConfigError, match="call setup_model first"):
        DataParallelTrainer().save_checkpoint("it.pt")


def test_a_place_in_the_world(no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    trainer = DistributedDataParallelTrainer(GPUConfig(backend="gloo"))
    trainer.setup_distributed(rank=1, world_size=4)
    world = trainer.world
    assert world is not None and (world.rank, world.size, world.local_rank, world.local_size) == (1, 4, 1, 4)
    assert world.init_method == "tcp://localhost:29500"
    trainer.setup_model(nn.Linear(2, 1))
    trainer.save_checkpoint("it.pt", epoch=1)
    assert not Path("it.pt").exists()  # rank 0 writes
    with pytest.raises(ConfigError, match="rank 4 of 4"):
        trainer.setup_distributed(rank=4, world_size=4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "there")
    monkeypatch.setenv("MASTER_PORT", "1234")
    with pytest.raises(ConfigError, match="variables says rank 1 of 2"):
        trainer.setup_distributed(rank=0, world_size=2)


def test_a_gpu_in_percent(two_gpus: SimulatedNvml) -> None:
    monitor = GPUMonitor()
    assert monitor.get_available_gpus() == [0]
    assert [each["id"] for each in monitor.get_gpu_info()] == [0, 1]
    usage = monitor.monitor_gpu_usage(gpu_id=0)
    assert (usage["gpu_id"], usage["memory_utilization"], usage["gpu_utilization"]) == (0, 25.0, 97.0)
    two_gpus.gpus[1].errors["nvmlDeviceGetUtilizationRates"] = 3
    assert math.isnan(monitor.monitor_gpu_usage(1)["gpu_utilization"])
    with pytest.raises(HardwareError):
        monitor.monitor_gpu_usage(2)


def test_gpus_that_are_not_there_are_told_and_left_out(
    two_gpus: SimulatedNvml, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = GPUMonitor(GPUConfig(gpu_ids=[1, 2, "GPU-cccc"]))
    assert [each["uuid"] for each in monitor.get_gpu_info()] == ["GPU-bbbb"]
    assert "GPU 2, GPU-cccc is not there" in caplog.text
    with onyx_ads.gpu_monitoring_context([0, 1, 2, 3]) as watching:
        assert [gpu.uuid for gpu in watching.gpus] == ["GPU-aaaa", "GPU-bbbb"]
    assert "GPU 2, 3 is not there" in caplog.text


def test_watching_goes_on_without_any_gpu(no_gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with onyx_ads.gpu_monitoring_context([0, 1]) as watching:
        assert watching.gpus == ()
    GPUMonitor(GPUConfig(gpu_ids=[0])).log_gpu_stats("Training start")
    assert "GPU 0, 1 is not there" in caplog.text and "Training start: no GPU" in caplog.text


@pytest.mark.parametrize("failure", [None, LaunchError("it failed", "look"), OSError("it failed")])
def test_a_launch_is_one_training(no_gpu: None, monkeypatch: pytest.MonkeyPatch, failure: Exception | None) -> None:
    """Each rank in turn, as rank 0 writes what the others wait for."""
    started = []

    async def finetune_model(self: Any, *args: Any, **settings: Any) -> Any:
        started.append((args, settings))
        if failure is not None:
            raise failure
        return {"success": True}

    async def of_rank(rank: int) -> Any:
        monkeypatch.setattr(onyx_ads, "detect_world", lambda: SimpleNamespace(rank=rank, size=2, run_id="it-0"))
        monkeypatch.setattr(OptimizedFineTuningService, "_calls", iter([0]))
        service = OptimizedFineTuningService()
        return await asyncio.wait_for(service.finetune_model_distributed("gpt2", "a.jsonl", {}, 123, world_size=2), 10)

    monkeypatch.setattr(FineTuningService, "finetune_model", finetune_model)
    for rank in (0, 1):
        if failure is None:
            assert asyncio.run(of_rank(rank)) == {"success": True}
        else:
            with pytest.raises(LaunchError if rank else type(failure), match="it failed"):
                asyncio.run(of_rank(rank))
    [(args, settings)] = started
    assert args == ("gpt2", "a.jsonl", {}, 123) and settings["world_size"] == 2


def test_each_rank_gets_its_own_and_coroutines_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def later(rank: int, world_size: int, model_name: str) -> tuple[int, int, str]:
        return rank, world_size, model_name

    monkeypatch.setattr(onyx_ads, "detect_world", lambda: SimpleNamespace(rank=3))
    assert onyx_ads.call_on_rank(later, 4, {"model_name": "gpt2"}) == (3, 4, "gpt2")
    assert onyx_ads.call_on_rank(lambda rank, world_size: rank + world_size, 4, {}) == 7


def test_the_router_is_the_services() -> None:
    from drumline.service import router

    assert onyx_ads.router is router
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = onyx_ads.other
