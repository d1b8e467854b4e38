"""nvidia-smi and torch's child know the same GPUs as NVML."""

from __future__ import annotations

import pytest

from drumline.hardware.nvidia_smi import read_with_smi
from drumline.hardware.records import Snapshot
from drumline.hardware.sample import read_snapshot
from drumline.hardware.session import open_session
from drumline.hardware.topology import read_topology
from drumline.hardware.torch_child import read_with_torch

pytestmark = pytest.mark.gpu


def test_three_sources_agree_on_the_machine() -> None:
    by_nvml, by_smi, by_torch = read_snapshot(), read_with_smi(30), read_with_torch(60)
    assert isinstance(by_smi, Snapshot), by_smi
    assert isinstance(by_torch, Snapshot), by_torch
    for ours, smi, torch in zip(by_nvml.gpus, by_smi.gpus, by_torch.gpus, strict=True):
        for name in ("uuid", "name", "index", "compute_capability", "pci_address"):
            values = {getattr(sample.gpu, name) for sample in (ours, smi, torch)}
            assert len(values) == 1, (name, values)
        sizes = [sample.gpu.memory_bytes or 0 for sample in (ours, smi, torch)]
        assert max(sizes) - min(sizes) < 2 << 30  # CUDA's total leaves out what the driver reserves


def test_each_two_gpus_have_a_link() -> None:
    with open_session() as session:
        topology = read_topology(session)
    uuids = [place.uuid for place in topology.places]
    assert len(topology.links) == len(uuids) * (len(uuids) - 1) // 2
    assert all(link.nvlinks or link.level is not None for link in topology.links)
    assert topology.best_group(uuids, len(uuids)) == tuple(uuids)
