"""Blocks and GPUs that are watched while they really work."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from drumline import GPUMonitor, gpu_monitoring_context, performance_context
from drumline.hardware.inventory import detect

pytestmark = pytest.mark.gpu

GIB = 1 << 30
BUSY_S = 1.5


def multiply(seconds: float) -> None:
    """Keep the first GPU busy with matrix products."""
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            left @ left
        torch.cuda.synchronize()


def test_energy_of_a_block_is_that_of_its_work() -> None:
    multiply(0.2)  # starting CUDA and loading kernels is not measured
    time.sleep(1.0)
    with performance_context("idle", [0]) as idle:
        time.sleep(BUSY_S)
    with performance_context("products", [0]) as busy:
        multiply(BUSY_S)
    assert idle.energy_j is not None and busy.energy_j is not None
    assert idle.wall_s is not None and busy.wall_s is not None
    assert 10 < idle.energy_j / idle.wall_s < busy.energy_j / busy.wall_s < 1500
    assert busy.energy_j / busy.wall_s > 2 * idle.energy_j / idle.wall_s
    gpu = busy.gpus[0]
    assert gpu.energy is not None and gpu.energy.resets == 0
    assert gpu.utilization is not None and gpu.utilization > 0.5


def test_work_that_was_only_enqueued_counts() -> None:
    torch.cuda._sleep(1)  # so that loading the kernel is not measured
    with performance_context("sleep", [0]) as block:
        torch.cuda._sleep(1_000_000_000)  # cycles: half a second at 2 GHz
    assert block.wall_s is not None and block.wall_s > 0.3
    assert block.cpu_s is not None


def test_memory_of_a_block() -> None:
    torch.cuda.empty_cache()
    with performance_context("allocate", [0]) as block:
        held = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
    (gpu,) = block.gpus
    assert gpu.memory_before_bytes is not None and gpu.memory_after_bytes is not None
    assert gpu.memory_after_bytes - gpu.memory_before_bytes >= 2.9 * GIB
    assert gpu.memory_max_bytes is not None and gpu.memory_max_bytes >= gpu.memory_after_bytes
    del held
    torch.cuda.empty_cache()


def test_torch_and_the_driver_mean_the_same_gpus() -> None:
    torch.cuda.init()
    monitor = GPUMonitor()
    assert len(monitor.gpus) == torch.cuda.device_count()
    for info in monitor.get_gpu_info():
        assert info.gpu.uuid.endswith(str(torch.cuda.get_device_properties(info.index).uuid))
        assert info.torch is not None or torch.cuda.memory_reserved(info.index) == 0
    monitor.stop_monitoring()


def test_a_matrix_product_is_work() -> None:
    with gpu_monitoring_context([0], every_s=0.2) as monitor:
        multiply(BUSY_S)
        left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        for _ in range(300):  # still at it when the driver is asked
            left @ left
        seen = monitor.get_gpu_info()[0].activity
        torch.cuda.synchronize()
    assert seen.kind == "working", seen
    (summary,) = monitor.get_gpu_summary().values()
    fields = summary.fields
    if torch.cuda.get_device_capability(0) >= (9, 0):
        assert fields["sm_active"].max > 0.8 and fields["tensor_active"].max > 0.3
    assert fields["memory_allocated_bytes"].max >= 128 << 20


def test_an_idle_gpu_is_idle() -> None:
    torch.cuda.synchronize()
    time.sleep(1.0)  # the driver's utilization looks back over up to a second
    with GPUMonitor([0]) as monitor:
        monitor.get_gpu_info()
        time.sleep(0.5)
        seen = monitor.get_gpu_info()[0].activity
    assert seen.kind == "idle", seen


def test_cuda_visible_devices_1_is_gpu_1() -> None:
    """In a process of its own: CUDA reads the variable once."""
    expected = [gpu.uuid for gpu in detect({}).gpus[1:2]]  # none, where there is one GPU
    script = "from drumline import GPUMonitor; print([info.gpu.uuid for info in GPUMonitor().get_gpu_info()])"
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(expected), done.stderr


def test_the_sampler_costs_less_than_a_hundredth_of_a_core() -> None:
    with GPUMonitor(every_s=1.0) as monitor:
        monitor.get_gpu_info()
        begin, cpu = time.monotonic(), time.process_time()
        time.sleep(5.0)
        used = (time.process_time() - cpu) / (time.monotonic() - begin)
    assert used < 0.01, f"{used:.2%} of a core"
