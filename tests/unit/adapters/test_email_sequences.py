"""What the adapter of the e-mail sequence system decides, and the values that it refuses."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from drumline.adapters.email_sequences import (
    DataParallelManager,
    DistributedManager,
    ErrorHandler,
    GPUMonitor,
    MultiGPUConfig,
    MultiGPUTrainer,
    PerformanceOptimizer,
    TrainingSettings,
    create_multi_gpu_trainer,
    create_optimized_training_optimizer,
    detect_training_mode,
    get_free_port,
    launch_distributed_training,
    optimize_model_for_multi_gpu,
)
from drumline.adapters.email_sequences.monitoring import flat
from drumline.adapters.email_sequences.settings import run_config
from drumline.config.parallel import DataParallel, DdpParallel
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError
from drumline.hardware.records import Gpu
from drumline.launcher.world import World
from drumline.monitor.gpu_monitor import GpuSummary
from drumline.monitor.window import Window
from drumline.parallel.optimized import OptimizedDataParallel
from drumline.rundir import read_json
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml
from tests.unit.engine.simulated_memory import SimulatedMemory, measured_by

GPUS = ("GPU-a", "GPU-b", "GPU-c")


def emails(num: int = 48) -> TensorDataset:
    inputs = torch.randn(num, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def made(config: MultiGPUConfig, gpus: tuple[str, ...] = (), *, has_norms: bool = False, **settings: Any) -> RunConfig:
    return run_config(config, TrainingSettings(**settings), gpus, 64, has_norms=has_norms)


@pytest.mark.parametrize(
    ("num_gpus", "distributed", "data_parallel", "device_ids", "mode"),
    [
        (0, True, True, None, "single_gpu"),
        (1, True, True, None, "single_gpu"),
        (2, True, True, None, "distributed"),
        (8, True, False, None, "distributed"),
        (2, False, True, None, "data_parallel"),
        (2, False, False, None, "single_gpu"),
        (4, True, True, [3], "single_gpu"),
        (4, False, True, [1, 3], "data_parallel"),
    ],
)
def test_auto_goes_by_the_five_rules(
    num_gpus: int, distributed: bool, data_parallel: bool, device_ids: list[int] | None, mode: str
) -> None:
    config = MultiGPUConfig(enable_distributed=distributed, enable_data_parallel=data_parallel, device_ids=device_ids)
    assert detect_training_mode(config, num_gpus) == mode


def test_a_mode_that_is_asked_for_counts_and_another_is_refused() -> None:
    assert detect_training_mode(MultiGPUConfig("distributed"), 0) == "distributed"
    with pytest.raises(ConfigError, match="training_mode 'ddp' is none"):
        detect_training_mode(MultiGPUConfig("ddp"), 2)


def test_the_settings_of_distributed_are_those_of_ddp() -> None:
    config = MultiGPUConfig("distributed", bucket_cap_mb=50, static_graph=True, broadcast_buffers=False, sync_bn=True)
    parallel = made(config, has_norms=True).parallel
    assert isinstance(parallel, DdpParallel)
    assert (parallel.bucket_mb, parallel.static_graph, parallel.broadcast_buffers) == (50, True, False)
    assert (parallel.gradient_as_bucket_view, parallel.find_unused, parallel.backend) == (False, "auto", "auto")
    assert parallel.sync_batch_norm
    plain = made(config).parallel
    assert isinstance(plain, DdpParallel) and not plain.sync_batch_norm
    for one, other in ((True, False), (False, True)):
        wants = MultiGPUConfig(
            "distributed", backend="gloo", find_unused_parameters=one, enable_find_unused_parameters=other
        )
        asked = made(wants).parallel
        assert isinstance(asked, DdpParallel) and (asked.find_unused, asked.backend) == ("always", "gloo")
    with pytest.raises(ConfigError, match=r"parallel\.backend"):
        made(MultiGPUConfig("distributed", backend="carrier pigeon"))


def test_the_batch_is_a_gpus_own_under_distributed_only() -> None:
    distributed, single = (made(MultiGPUConfig(mode), GPUS).train for mode in ("distributed", "single_gpu"))
    assert (distributed.batch_size_per_gpu, distributed.global_batch) == (64, None)
    assert (single.batch_size_per_gpu, single.global_batch) == (None, 64)
    assert made(MultiGPUConfig("data_parallel"), GPUS, batch_size=32).train.global_batch == 32


def test_devices_are_named_by_uuid_and_on_the_cpu_they_are_replicas() -> None:
    config = MultiGPUConfig("data_parallel", device_ids=[2, 0])
    assert made(config, GPUS).hardware.gpus == ["GPU-c", "GPU-a"]
    assert made(MultiGPUConfig("data_parallel"), GPUS).hardware.gpus is None
    on_cpu = made(config)
    assert on_cpu.hardware.gpus is None
    assert isinstance(on_cpu.parallel, DataParallel) and on_cpu.parallel.replicas == 2
    with pytest.raises(ConfigError, match="device_ids has 3, and this process sees 3 GPUs"):
        made(MultiGPUConfig(device_ids=[0, 3]), GPUS)


def test_the_settings_of_a_training() -> None:
    plain = made(MultiGPUConfig())
    assert (plain.train.precision, plain.train.checkpointing.kind, plain.train.lr) == ("fp32", "none", 1e-3)
    assert plain.train.schedule.name == "constant" and plain.train.optimizer.betas == (0.9, 0.999)
    assert (plain.train.epochs, plain.evaluate.early_stopping) == (10, None)
    other = made(
        MultiGPUConfig(),
        enable_mixed_precision=True,
        enable_gradient_checkpointing=True,
        early_stopping_patience=5,
        experiment_name="mine",
    )
    assert (other.train.precision, other.train.checkpointing.kind, other.name) == ("auto", "full", "mine")
    assert other.evaluate.early_stopping is not None and other.evaluate.early_stopping.patience == 5


def test_a_place_in_the_config_counts_unless_the_launcher_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    address = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4711"}
    given = DistributedManager(MultiGPUConfig(rank=1, world_size=2))
    assert given.world(address) == World(1, 2, 1, 2, "tcp://10.0.0.1:4711", source="MultiGPUConfig")
    with pytest.raises(ConfigError, match="MASTER_PORT is not set"):
        given.world({"MASTER_ADDR": "10.0.0.1"})
    files = DistributedManager(MultiGPUConfig(rank=3, world_size=4, local_rank=1, init_method="file:///tmp/meet"))
    assert files.world({"LOCAL_WORLD_SIZE": "2"}) == World(3, 4, 1, 2, "file:///tmp/meet", source="MultiGPUConfig")
    assert DistributedManager(MultiGPUConfig(world_size=2)).world(address) is None
    for name, value in {**address, "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert given.world(address) is None


def test_training_without_model_data_or_validation_data_is_refused() -> None:
    trainer = MultiGPUTrainer()
    with pytest.raises(ConfigError, match=r"no model to train\n.*initialize_training"):
        asyncio.run(trainer.train())
    trainer.initialize_training(nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=r"no data to train on\n.*setup_dataloader"):
        asyncio.run(trainer.train())
    trainer.setup_dataloader(emails(), batch_size=8)
    trainer.settings.early_stopping_patience = 2
    with pytest.raises(ConfigError, match="early_stopping_patience=2, and there is no validation data"):
        asyncio.run(trainer.train())


def test_settings_come_by_name_and_a_wrong_name_is_refused() -> None:
    config = MultiGPUConfig(sync_bn=True)
    trainer = create_multi_gpu_trainer(config, training_mode="single_gpu", max_epochs=3)
    assert (trainer.config.training_mode, trainer.config.sync_bn, trainer.settings.max_epochs) == (
        "single_gpu",
        True,
        3,
    )
    assert config.training_mode == "auto"
    with pytest.raises(ConfigError, match=r"no setting device_id\n.*did you mean device_ids"):
        create_multi_gpu_trainer(device_id=[0])


def test_data_parallel_hands_back_replicas_and_other_modes_the_model() -> None:
    model = nn.Linear(4, 2)
    wrapped, trainer = optimize_model_for_multi_gpu(model, training_mode="data_parallel", device_ids=[0, 1, 2])
    assert isinstance(wrapped, OptimizedDataParallel) and wrapped.module is model and trainer.model is model
    if not torch.cuda.is_available():
        assert len(wrapped.devices) == 3
        assert len(DataParallelManager(MultiGPUConfig()).setup_model(model).devices) == 1  # type: ignore[arg-type]
    wrapped.close()
    assert optimize_model_for_multi_gpu(model, training_mode="single_gpu")[0] is model


def test_the_optimizer_has_its_settings_as_attributes_and_heeds_changes() -> None:
    optimizer = create_optimized_training_optimizer(nn.Linear(4, 2), emails(), batch_size=8, learning_rate=0.1)
    assert (optimizer.max_epochs, optimizer.learning_rate, optimizer.batch_size) == (10, 0.1, 8)
    assert not optimizer.enable_mixed_precision and not optimizer.enable_gradient_checkpointing
    optimizer.batch_size = 4
    _, config = optimizer.multi_gpu_trainer.of_run(optimizer.train_loader)
    assert config.train.global_batch == 4


def test_the_flat_summary_is_over_time_and_gpus() -> None:
    def summary(index: int, mean: float, most: float) -> GpuSummary:
        window = Window(count=2, span_s=1.0, last=most, min=0.0, max=most, mean=mean, p50=mean, p95=most)
        gpu = Gpu(f"GPU-{index}", "simulated", index, 80, None)
        return GpuSummary(index, gpu, {"memory_allocated_bytes": window, "power_w": window}, None)

    found = flat({"GPU-0": summary(0, 10.0, 20.0), "GPU-1": summary(1, 30.0, 50.0)})
    assert (found["memory_allocated_mean"], found["memory_allocated_max"], found["power_usage_max"]) == (20, 50, 50)
    assert found["memory_reserved_max"] == 0 and "temperature_mean" not in found


def test_the_monitor_names_gpus_and_records_them() -> None:
    monitor = GPUMonitor(nvml=SimulatedNvml([SimulatedGpu("GPU-1"), SimulatedGpu("GPU-2", memory_used_bytes=1 << 30)]))
    info = monitor.get_gpu_info()
    assert (info["device_count"], info["current_device"]) == (2, 0)
    assert info["devices"][1] == {"name": "NVIDIA H100 80GB HBM3", "total_memory": 80 << 30, "capability": (9, 0)}
    assert set(monitor.record_gpu_metrics([1])) == {1}
    assert monitor.get_gpu_summary()["memory_used_max"] >= 1 << 30
    none = GPUMonitor(nvml=SimulatedNvml([]))
    assert none.get_gpu_info() == {"device_count": 0, "current_device": None, "devices": {}}
    assert none.get_gpu_summary()["memory_allocated_mean"] == 0


def test_an_error_is_told_with_its_fix() -> None:
    told = ErrorHandler().handle_error(ConfigError("wrong", "mend it"), "loading")
    assert told == {"context": "loading", "code": "config", "message": "wrong", "fix": "mend it"}
    assert ErrorHandler().handle_error(ValueError("odd"))["code"] == "ValueError"


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as mine:
        mine.bind(("", get_free_port()))


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no script"):
        launch_distributed_training(tmp_path / "no.py", world_size=2)


def test_the_largest_batch_is_what_fits_into_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    optimizer = create_optimized_training_optimizer(nn.Linear(4, 2), None)
    optimizer.multi_gpu_trainer.setup_dataloader(emails(48), batch_size=2)
    performance = PerformanceOptimizer(optimizer.multi_gpu_trainer)
    with measured_by(SimulatedMemory(optimizer.model, (10 + 3 * 12) / 0.9)):
        assert performance.largest_batch(0.9) == 12
    assert not list(tmp_path.iterdir())
    assert optimizer.multi_gpu_trainer.train_loader.batch_size == 2


def test_a_cancelled_task_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = create_multi_gpu_trainer(max_epochs=1000, experiment_name="long")
    trainer.initialize_training(nn.Linear(4, 2))
    trainer.setup_dataloader(emails(), batch_size=48)

    async def cancel() -> None:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        monkeypatch.setattr(trainer.logger, "log_epoch", lambda line: loop.call_soon_threadsafe(begun.set))
        task = asyncio.create_task(trainer.train())
        await asyncio.wait_for(begun.wait(), timeout=60)
        assert trainer.get_training_info()["is_training"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())  # which waits for the thread
    assert not trainer.get_training_info()["is_training"]
    assert read_json(tmp_path / "runs" / "long" / "exit.json")["reason"] == "cancelled"
