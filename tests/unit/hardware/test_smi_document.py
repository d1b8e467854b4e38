from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from drumline.hardware import smi_document
from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Snapshot
from drumline.hardware.smi_document import parse

A = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
B = "GPU-8a41c2d0-11aa-4b6e-9d53-0c4f6b1f2e77"
T4 = "GPU-0b7e55aa-5f0e-4a0c-8a2e-6d7f3a9b1c02"
MIB = 1 << 20
DOCUMENTS = Path(__file__).parent / "simulated_smi"
LISTING = f"""GPU 0: NVIDIA H100 80GB HBM3 (UUID: {A})
  MIG 1g.10gb     Device  0: (UUID: MIG-11111111-aaaa)
  MIG 1g.10gb     Device  1: (UUID: MIG-22222222-bbbb)
"""


def document(name: str) -> str:
    return (DOCUMENTS / f"{name}.xml").read_text()


def parsed(text: str, **more: str) -> Snapshot:
    snapshot = parse(text, 1000.0, **more)
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_a_gpu_at_work() -> None:
    snapshot = parsed(document("two_h100"), capabilities=f"{A}, 9.0\nGPU-other, [N/A]\n")
    assert snapshot.source == "nvidia-smi 580.159.04"
    assert snapshot.time == 1000.0
    assert snapshot.problems == () and not snapshot.no_gpu
    first = snapshot.gpus[0]
    assert first.gpu == Gpu(A, "NVIDIA H100 80GB HBM3", 0, 81559 * MIB, (9, 0), "0000:1b:00.0")
    expected = {
        "utilization": 0.97,
        "memory_utilization": 0.41,
        "memory_used_bytes": 70000 * MIB,
        "memory_free_bytes": (81559 - 551 - 70000) * MIB,
        "temperature_c": 61,
        "memory_temperature_c": 58,
        "slowdown_temperature_c": 61 + 26 + 2,
        "power_w": 683.21,
        "power_limit_w": 700,
        "energy_j": None,
        "fan": None,
        "sm_clock_mhz": 1755,
        "max_sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "pcie_tx_bytes_per_s": 1_250_000,
        "pcie_rx_bytes_per_s": 33_300_000,
        "pcie_generation": 4,
        "max_pcie_generation": 5,
        "pcie_width": 8,
        "max_pcie_width": 16,
        "nvlink_tx_bytes": None,
        "nvlink_rx_bytes": None,
        "pipes": None,
    }
    assert {name: getattr(first, name) for name in expected} == pytest.approx(expected)
    assert first.throttled_by == ("power limit",)
    assert first.refused["fan"] == "not supported"
    assert "does not tell" in first.refused["energy_j"]


def test_every_field_of_a_sample_has_a_value_or_a_reason() -> None:
    for name in ("two_h100", "h100_with_mig", "t4_of_an_old_driver"):
        for sample in parsed(document(name), listing=LISTING).gpus:
            empty = {item.name for item in fields(GpuSample) if getattr(sample, item.name) is None}
            assert empty == set(sample.refused), name


def test_processes_keep_what_the_driver_tells_of_them() -> None:
    """Their numbers are beyond the kernel's largest, so that no process of this machine can have them."""
    text = document("two_h100").replace("41900", "9941900")
    first, second = parsed(text).gpus
    assert first.processes == (
        GpuProcess(994190001, "compute", 69400 * MIB, "/opt/a&b<c/fit"),
        GpuProcess(994190002, "compute+graphics", None, None),
    )
    assert second.processes == ()


def test_the_second_gpu_is_its_own() -> None:
    second = parsed(document("two_h100")).gpus[1]
    assert (second.gpu.uuid, second.gpu.index, second.gpu.pci_address) == (B, 1, "0001:3b:00.0")
    assert second.gpu.compute_capability is None
    assert second.throttled_by == ("hardware slowdown", "power brake")
    assert (second.utilization, second.slowdown_temperature_c) == (0, 89)


def test_an_old_drivers_document() -> None:
    (sample,) = parsed(document("t4_of_an_old_driver")).gpus
    assert sample.gpu == Gpu(T4, "Tesla T4", 0, 15109 * MIB, None, "0000:00:1e.0")
    assert (sample.power_w, sample.power_limit_w, sample.slowdown_temperature_c) == (26.78, 65, 93)
    assert sample.throttled_by == ("hardware slowdown", "heat (software)", "heat (hardware)")
    assert sample.fan == pytest.approx(0.33)
    assert sample.processes is None and sample.refused["processes"] == "no permission"
    assert sample.refused["pcie_tx_bytes_per_s"] == "unknown error"
    assert "does not tell" in sample.refused["pcie_rx_bytes_per_s"]


def test_mig_instances_get_names_from_the_listing() -> None:
    whole, first, second = parsed(document("h100_with_mig"), listing=LISTING).gpus
    assert whole.utilization is None and whole.refused["utilization"] == "not supported"
    assert whole.gpu.parent is None
    assert (first.gpu.uuid, first.gpu.parent, first.gpu.index) == ("MIG-11111111-aaaa", A, 0)
    assert (first.gpu.name, first.gpu.memory_bytes) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984 * MIB)
    assert (first.memory_used_bytes, second.memory_used_bytes) == (1200 * MIB, 11 * MIB)
    assert [entry.pid for entry in first.processes or ()] == [4190003]
    assert second.processes == ()
    assert first.power_w is None and first.refused["power_w"] == "told of the whole GPU only"


def test_mig_instances_without_a_listing_are_left_out_and_named() -> None:
    snapshot = parsed(document("h100_with_mig"))
    assert [sample.gpu.uuid for sample in snapshot.gpus] == [A]
    assert snapshot.problems == (
        "MIG instance 0 of GPU 0 left out: nvidia-smi -L does not list it",
        "MIG instance 1 of GPU 0 left out: nvidia-smi -L does not list it",
    )


def test_a_lost_gpu_is_left_out_with_its_reason() -> None:
    text = document("two_h100").replace(f"<uuid>{B}</uuid>", "<uuid>[GPU is lost]</uuid>")
    snapshot = parsed("Unable to determine the device handle for GPU 0001:3B:00.0: GPU is lost.\n" + text)
    assert [sample.gpu.uuid for sample in snapshot.gpus] == [A]
    assert snapshot.problems == ("GPU 1 left out: GPU is lost",)


def test_a_driver_without_gpus() -> None:
    text = '<?xml version="1.0" ?><nvidia_smi_log><driver_version>580.1</driver_version></nvidia_smi_log>'
    assert parsed(text) == Snapshot(1000.0, "nvidia-smi 580.1: no GPU", no_gpu=True)


def test_bytes_of_any_kind_in_a_name_do_not_spoil_the_document() -> None:
    text = document("two_h100").replace("[Not Found]", "\x01\ufffd\x7f&amp;")
    assert (parsed(text).gpus[0].processes or ())[1].name == "\ufffd?&"


@pytest.mark.parametrize(
    "text", ["", "NVIDIA-SMI has failed because it couldn't communicate", "<?xml version='1.0'?><a"]
)
def test_what_is_no_document_is_a_value(text: str) -> None:
    answer = parse(text, 0.0)
    assert isinstance(answer, Unavailable)
    assert answer.reason.startswith("nvidia-smi wrote no XML: ")


def test_the_words_for_throttling_are_the_same_as_nvmls() -> None:
    from drumline.hardware.sample import THROTTLES

    assert list(smi_document.THROTTLES.values()) == list(THROTTLES.values())
