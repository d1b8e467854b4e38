from __future__ import annotations

import pytest

from drumline.hardware.peaks import PEAKS, find_peak, peak_flops


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 80GB HBM3", "fp32", 66.9),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "fp16", 835.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("A100-PCIE-40GB", "tf32", 156),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181),
        ("NVIDIA L40S", "bf16", 362),
        ("Tesla T4", "fp16", 65),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-PCIE-32GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 3090", "fp16", 71),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA H100 80GB HBM3", "int8", 1978.9),
        ("NVIDIA B200", "fp8", 4500),
        ("NVIDIA L4", "fp8", 242.5),
        ("NVIDIA A100-SXM4-40GB", "int8", 624),
        ("Tesla T4", "int8", 130),
    ],
)
def test_known_cards(name: str, precision: str, tera: float) -> None:
    assert peak_flops(name, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A100-SXM-64GB",
        "GRID A100-10C",
        "NVIDIA A10-24Q",
        "NVIDIA A10G",
        "NVIDIA H20",
        "NVIDIA T400",
        "unknown",
        "",
    ],
)
def test_a_card_that_only_looks_like_a_known_one_is_unknown(name: str) -> None:
    assert find_peak(name) is None
    assert peak_flops(name, "bf16") is None


@pytest.mark.parametrize(
    ("name", "precision"),
    [("Tesla T4", "bf16"), ("Tesla V100-SXM2-32GB", "tf32"), ("NVIDIA A40", "fp8"), ("Tesla V100S-PCIE-32GB", "int8")],
)
def test_units_that_a_card_lacks_have_no_rate(name: str, precision: str) -> None:
    assert peak_flops(name, precision) is None


def test_an_unheard_of_precision_has_no_rate() -> None:
    assert peak_flops("NVIDIA H200", "fp4") is None
    assert peak_flops("NVIDIA H200", "memory") is None


def test_the_table_is_consistent() -> None:
    names = [name for row in PEAKS for name in row.names]
    assert len(names) == len(set(names))
    for row in PEAKS:
        assert row.source.startswith("NVIDIA")
        # A misplaced column or a factor of sparsity shows here: tensor rates stand in fixed proportions.
        assert row.bf16 is None or row.bf16 == row.fp16
        if row.tf32 is not None and row.bf16 is not None:
            assert row.bf16 / row.tf32 == pytest.approx(2, rel=0.03)
        assert row.fp32 is not None and row.fp16 is not None and row.fp32 < row.fp16
        assert row.fp8 is None or row.fp8 / row.fp16 == pytest.approx(2, rel=0.02)
        # GeForce cards have full rate for whole numbers, and half for fp16 with fp32 accumulation.
        full = 4 if "RTX" in row.names[0] and "A6000" not in row.names[0] else 2
        assert row.int8 is None or row.int8 / row.fp16 == pytest.approx(full, rel=0.02)
        assert row.memory is None or 2e11 < row.memory < 1e13


@pytest.mark.parametrize(
    ("name", "giga"),
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_memory_bandwidth(name: str, giga: float | None) -> None:
    row = find_peak(name)
    assert row is not None
    assert row.memory == (None if giga is None else giga * 1e9)
