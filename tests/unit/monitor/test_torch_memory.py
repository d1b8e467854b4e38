from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from drumline.monitor.gpu_monitor import GPUMonitor
from drumline.monitor.torch_memory import TorchMemory, read_torch_memory, torch_cuda, torch_indexes
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml
from tests.unit.monitor.snapshots import gpu


def use_cuda(monkeypatch: pytest.MonkeyPatch, uuids: list[str], stats: dict[str, int]) -> None:
    """A torch that uses CUDA on GPUs of these UUIDs: there is none here."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: len(uuids),
        get_device_properties=lambda index: SimpleNamespace(uuid=uuids[index]),
        memory_stats=lambda index: stats if index == 1 else {},
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


STATS = {
    "allocated_bytes.all.current": 10,
    "allocated_bytes.all.peak": 30,
    "reserved_bytes.all.current": 20,
    "reserved_bytes.all.peak": 40,
}


def test_torch_names_gpus_by_the_number_in_their_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    use_cuda(monkeypatch, ["1", "0"], STATS)
    assert torch_indexes([gpu(0), gpu(1), gpu(2)]) == {"GPU-0": 1, "GPU-1": 0}
    assert read_torch_memory(1) == TorchMemory(10, 20, 30, 40)
    assert read_torch_memory(0) is None


@pytest.mark.parametrize("torch", [SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace(is_initialized=bool)), None])
def test_a_torch_that_does_not_use_cuda_is_not_asked(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch_cuda() is None
    assert torch_indexes([gpu()]) == {}
    assert read_torch_memory(0) is None


def test_it_imports_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monitor = GPUMonitor(nvml=SimulatedNvml([SimulatedGpu("GPU-0")]))
    assert monitor.record_gpu_metrics()[0].torch is None
    monitor.stop_monitoring()
    assert "torch" not in sys.modules
