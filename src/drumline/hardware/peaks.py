"""Peak arithmetic rates by GPU name, from NVIDIA's own papers; what is not known for certain is absent."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Dense peak rates of one card in FLOP/s; tensor cores with fp32 accumulation, no sparsity.

    fp32 is the rate of the plain fp32 units, which is what a matrix product gets when TF32 is off.
    """

    names: tuple[str, ...]
    """Whole words that the driver's name of this card contains."""
    bf16: float | None
    fp16: float | None
    tf32: float | None
    fp32: float | None
    source: str


_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"
_T = 1e12
# Where a data sheet gives a tensor rate with sparsity only, half of it is the dense rate.
PEAKS = (
    Peak(("GB200",), 2500 * _T, 2500 * _T, 1250 * _T, 80 * _T, "NVIDIA Blackwell data sheet, GB200 NVL72, one GPU"),
    Peak(("B200",), 2250 * _T, 2250 * _T, 1100 * _T, 75 * _T, "NVIDIA Blackwell data sheet, HGX B200, one GPU"),
    Peak(("GH200",), 989.5 * _T, 989.5 * _T, 494.5 * _T, 67 * _T, "NVIDIA GH200 data sheet"),
    Peak(("H200 NVL",), 835.5 * _T, 835.5 * _T, 417.5 * _T, 60 * _T, "NVIDIA H200 data sheet, NVL"),
    Peak(("H200",), 989.5 * _T, 989.5 * _T, 494.5 * _T, 67 * _T, "NVIDIA H200 data sheet, SXM"),
    Peak(("H100 80GB HBM3",), 989.4 * _T, 989.4 * _T, 494.7 * _T, 66.9 * _T, f"{_HOPPER}, SXM5"),
    Peak(("H100 PCIe",), 756 * _T, 756 * _T, 378 * _T, 51.2 * _T, f"{_HOPPER}, PCIe"),
    Peak(("H100 NVL",), 835.5 * _T, 835.5 * _T, 417.5 * _T, 60 * _T, "NVIDIA H100 data sheet, NVL"),
    # Not "A100" alone: custom parts such as the A100-SXM-64GB have other rates.
    Peak(
        ("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100 80GB PCIe"),
        *(312 * _T, 312 * _T, 156 * _T, 19.5 * _T),
        "NVIDIA A100 data sheet",
    ),
    Peak(("A40",), 149.7 * _T, 149.7 * _T, 74.8 * _T, 37.4 * _T, "NVIDIA A40 data sheet"),
    Peak(("A30",), 165 * _T, 165 * _T, 82 * _T, 10.3 * _T, "NVIDIA A30 data sheet"),
    Peak(("A10",), 125 * _T, 125 * _T, 62.5 * _T, 31.2 * _T, "NVIDIA A10 data sheet"),
    Peak(("L40S",), 362 * _T, 362 * _T, 183 * _T, 91.6 * _T, "NVIDIA L40S data sheet"),
    Peak(("L40",), 181 * _T, 181 * _T, 90.5 * _T, 90.5 * _T, "NVIDIA L40 data sheet"),
    Peak(("L4",), 121 * _T, 121 * _T, 60 * _T, 30.3 * _T, "NVIDIA L4 data sheet"),
    Peak(("V100-SXM2",), None, 125 * _T, None, 15.7 * _T, "NVIDIA V100 data sheet, SXM2"),
    Peak(("V100-PCIE",), None, 112 * _T, None, 14 * _T, "NVIDIA V100 data sheet, PCIe"),
    Peak(("V100S-PCIE",), None, 130 * _T, None, 16.4 * _T, "NVIDIA V100 data sheet, V100S"),
    Peak(("T4",), None, 65 * _T, None, 8.1 * _T, "NVIDIA T4 data sheet"),
    Peak(("RTX A6000",), 154.8 * _T, 154.8 * _T, 77.4 * _T, 38.7 * _T, _GA102),
    Peak(("RTX 4090",), 165.2 * _T, 165.2 * _T, 82.6 * _T, 82.6 * _T, _ADA),
    Peak(("RTX 4080",), 97.5 * _T, 97.5 * _T, 48.7 * _T, 48.7 * _T, _ADA),
    Peak(("RTX 3090",), 71 * _T, 71 * _T, 35.6 * _T, 35.6 * _T, _GA102),
)
# Words of the driver's names that make another card, or a part of one: laptop chips, later variants of a GeForce,
# MIG instances, virtual GPUs ("GRID A100-10C").
_OTHER_CARD = re.compile(r"\b(Laptop|Max-Q|Mobile|MIG|GRID|SUPER|Ti|RTX \d+ D)\b|-\d+[ABCQ]$")


def find_peak(gpu_name: str) -> Peak | None:
    """The row for a GPU as the driver names it, the longest name that fits; None for a card not in the table."""
    if _OTHER_CARD.search(gpu_name):
        return None
    fits = [
        (len(name), row)
        for row in PEAKS
        for name in row.names
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", gpu_name)
    ]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def peak_flops(gpu_name: str, precision: str) -> float | None:
    """Dense peak in FLOP/s of one GPU at fp32, tf32, bf16 or fp16; None where unknown or without such units."""
    row = find_peak(gpu_name)
    rates = {} if row is None else {"bf16": row.bf16, "fp16": row.fp16, "tf32": row.tf32, "fp32": row.fp32}
    return rates.get(precision)
