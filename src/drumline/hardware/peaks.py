"""Peak rates by GPU name, from NVIDIA's own papers; what is not known for certain is absent."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Dense peak rates of one card in operations a second; tensor cores with fp32 accumulation, no sparsity.

    fp32 is the rate of the plain fp32 units, which is what a matrix product gets when TF32 is off.
    """

    names: tuple[str, ...]
    """Whole words that the driver's name of this card contains."""
    bf16: float | None
    fp16: float | None
    tf32: float | None
    fp32: float | None
    fp8: float | None
    int8: float | None
    """Accumulated in int32."""
    memory: float | None
    """Bandwidth of its own memory, in bytes a second."""
    source: str


_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
_ADA = "NVIDIA Ada GPU Architecture whitepaper"


def _row(names: tuple[str, ...] | str, rates: tuple[float | None, ...], memory: float | None, source: str) -> Peak:
    """rates: of bf16, fp16, tf32, fp32, fp8 and int8, in 10^12 a second; memory in 10^9 bytes a second."""
    bf16, fp16, tf32, fp32, fp8, int8 = (None if rate is None else rate * 1e12 for rate in rates)
    bandwidth = None if memory is None else memory * 1e9
    return Peak((names,) if isinstance(names, str) else names, bf16, fp16, tf32, fp32, fp8, int8, bandwidth, source)


# Where a data sheet gives a tensor rate with sparsity only, half of it is the dense rate. GH200 comes with two kinds of
# memory under one name.
PEAKS = (
    _row("GB200", (2500, 2500, 1250, 80, 5000, 5000), 8000, "NVIDIA Blackwell data sheet, GB200 NVL72, one GPU"),
    _row("B200", (2250, 2250, 1100, 75, 4500, 4500), 8000, "NVIDIA Blackwell data sheet, HGX B200, one GPU"),
    _row("GH200", (989.5, 989.5, 494.5, 67, 1979, 1979), None, "NVIDIA GH200 data sheet"),
    _row("H200 NVL", (835.5, 835.5, 417.5, 60, 1670.5, 1670.5), 4800, "NVIDIA H200 data sheet, NVL"),
    _row("H200", (989.5, 989.5, 494.5, 67, 1979, 1979), 4800, "NVIDIA H200 data sheet, SXM"),
    _row("H100 80GB HBM3", (989.4, 989.4, 494.7, 66.9, 1978.9, 1978.9), 3350, f"{_HOPPER}, SXM5"),
    _row("H100 PCIe", (756, 756, 378, 51.2, 1513, 1513), 2000, f"{_HOPPER}, PCIe"),
    _row("H100 NVL", (835.5, 835.5, 417.5, 60, 1670.5, 1670.5), 3900, "NVIDIA H100 data sheet, NVL"),
    # Not "A100" alone: custom parts such as the A100-SXM-64GB have other rates.
    _row(("A100-SXM4-40GB", "A100-PCIE-40GB"), (312, 312, 156, 19.5, None, 624), 1555, "NVIDIA A100 data sheet"),
    _row("A100-SXM4-80GB", (312, 312, 156, 19.5, None, 624), 2039, "NVIDIA A100 data sheet"),
    _row("A100 80GB PCIe", (312, 312, 156, 19.5, None, 624), 1935, "NVIDIA A100 data sheet"),
    _row("A40", (149.7, 149.7, 74.8, 37.4, None, 299.3), 696, "NVIDIA A40 data sheet"),
    _row("A30", (165, 165, 82, 10.3, None, 330), 933, "NVIDIA A30 data sheet"),
    _row("A10", (125, 125, 62.5, 31.2, None, 250), 600, "NVIDIA A10 data sheet"),
    _row("L40S", (362, 362, 183, 91.6, 733, 733), 864, "NVIDIA L40S data sheet"),
    _row("L40", (181, 181, 90.5, 90.5, 362, 362), 864, "NVIDIA L40 data sheet"),
    _row("L4", (121, 121, 60, 30.3, 242.5, 242.5), 300, "NVIDIA L4 data sheet"),
    _row("V100-SXM2", (None, 125, None, 15.7, None, None), 900, "NVIDIA V100 data sheet, SXM2"),
    _row("V100-PCIE", (None, 112, None, 14, None, None), 900, "NVIDIA V100 data sheet, PCIe"),
    _row("V100S-PCIE", (None, 130, None, 16.4, None, None), 1134, "NVIDIA V100 data sheet, V100S"),
    _row("T4", (None, 65, None, 8.1, None, 130), 320, "NVIDIA T4 data sheet; memory: Turing architecture whitepaper"),
    _row("RTX A6000", (154.8, 154.8, 77.4, 38.7, None, 309.7), 768, _GA102),
    _row("RTX 4090", (165.2, 165.2, 82.6, 82.6, 330.3, 660.6), 1008, _ADA),
    _row("RTX 4080", (97.5, 97.5, 48.7, 48.7, 194.9, 389.9), 716.8, _ADA),
    _row("RTX 3090", (71, 71, 35.6, 35.6, None, 284), 936, _GA102),
)
PRECISIONS = ("bf16", "fp16", "tf32", "fp32", "fp8", "int8")
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
    """Dense peak in operations a second of one GPU at one of PRECISIONS; None where unknown or without such units."""
    row = find_peak(gpu_name)
    rate: float | None = getattr(row, precision) if row is not None and precision in PRECISIONS else None
    return rate
