from __future__ import annotations

from typing import Any

import pytest

from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.torch_child import LIVE_FIELDS, snapshot_of

DEVICE = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "8932f937-d72c",
    "memory_bytes": 85_000_000_000,
    "compute_capability": [9, 0],
    "pci_address": None,
    "multiprocessors": 132,
}


def facts(**changes: Any) -> dict[str, Any]:
    return {"version": "2.11.0", "cuda": "13.0", "devices": [DEVICE], **changes}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"error": "torch gave no answer within 5 s"}, "torch gave no answer within 5 s"),
        (facts(cuda=None), "torch 2.11.0 is built without CUDA"),
        (facts(devices={"error": "RuntimeError: no driver"}), "CUDA does not start: RuntimeError: no driver"),
        (facts(devices=[]), "torch sees no GPU"),
    ],
)
def test_each_way_to_know_nothing_is_a_value(answer: dict[str, Any], reason: str) -> None:
    assert snapshot_of(answer, 0.0) == Unavailable(reason)


def test_uuids_are_spelt_as_nvml_spells_them() -> None:
    instance = {**DEVICE, "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "uuid": "11111111-aaaa"}
    nameless = {**DEVICE, "uuid": ""}
    snapshot = snapshot_of(facts(devices=[DEVICE, instance, nameless, {**DEVICE, "uuid": "GPU-0b7e"}]), 5.0)
    assert isinstance(snapshot, Snapshot)
    assert [(s.gpu.uuid, s.gpu.index) for s in snapshot.gpus] == [
        ("GPU-8932f937-d72c", 0),
        ("MIG-11111111-aaaa", 1),
        ("GPU-0b7e", 3),
    ]
    assert snapshot.problems == ("GPU 2 left out: torch 2.11.0 does not tell its UUID",)
    assert snapshot.time == snapshot.gpus[0].time == 5.0


def test_every_live_field_is_refused() -> None:
    snapshot = snapshot_of(facts(), 0.0)
    assert isinstance(snapshot, Snapshot)
    sample: GpuSample = snapshot.gpus[0]
    assert "utilization" in LIVE_FIELDS and "gpu" not in LIVE_FIELDS
    assert all(getattr(sample, name) is None and sample.refused[name] for name in LIVE_FIELDS)
