"""Verdicts on what the active tests of GPUs measured: pure, with what was expected and what to do."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from drumline.hardware.peaks import find_peak, peak_flops
from drumline.hardware.records import GpuSample
from drumline.hardware.topology import Topology

Status = Literal["ok", "warn", "fail"]

LEAST_OF_PEAK = {"product": 0.4, "device_copy": 0.6}
"""Share of the data sheet's rate from which on it is not worth a warning. Our choice, generous since a card under a
tight power limit runs large products far below its peak."""
LEAST_OF_PCIE = 0.5
"""Share of what the PCIe link can carry, of a copy from or to pinned memory. Our choice."""
LEAST_OF_LIKE = 0.8
"""Share of the median over GPUs of the same name, or over links of the same kind. Our choice."""
# PCI-SIG: transfers a second and lane, times 8/10 (1, 2), 128/130 (3 to 5) or 242/256 (6) for the coding, over 8 bits.
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

RESET = "reset the GPU (nvidia-smi --gpu-reset) or reboot, and test again; if it stays, have the GPU replaced"
PEER = "set NCCL_P2P_DISABLE=1; switch off IOMMU and PCIe ACS, or use a driver that knows the card's peer access"
SLOW = "see drumline gpus for clocks, heat, power and links; compare with another GPU of the same name"


@dataclass(frozen=True)
class TestResult:
    """What one test said of one GPU, of a pair, or of all together."""

    __test__: ClassVar[bool] = False  # pytest takes classes of this name for tests of its own

    name: str
    uuid: str
    """Of the GPU; of the first of a pair; of the first where all work together."""
    status: Status
    value: float | None
    unit: str
    expected: float | None
    """The least that is right; None where nobody knows."""
    message: str
    fix: str | None = None
    others: tuple[str, ...] = ()
    """UUIDs of the other GPUs that took part."""


@dataclass(frozen=True)
class Outcome:
    """What a child wrote of one test: facts, or why there are none."""

    test: str
    uuids: tuple[str, ...]
    facts: Mapping[str, Any] | None = None
    error: str | None = None
    not_run: str | None = None
    """Why the test never began."""


def judge(
    outcomes: Sequence[Outcome], samples: Mapping[str, GpuSample], topology: Topology | None = None
) -> list[TestResult]:
    """Pure: a result for each outcome (two for copies with the host); `samples`: what is known of the GPUs by UUID.

    Wrong values and errors fail. A rate below what is expected of the card, or of its likes here, is a warning.
    """
    results = [result for outcome in outcomes for result in judge_one(outcome, samples)]
    return _compared(results, samples, topology or Topology())


def judge_one(outcome: Outcome, samples: Mapping[str, GpuSample]) -> list[TestResult]:
    """Pure: the same of one outcome, with nothing to compare it to."""
    first, *others = outcome.uuids
    plain = TestResult(outcome.test, first, "ok", None, "", None, "", others=tuple(others))
    facts = outcome.facts
    if outcome.not_run is not None:
        return [replace(plain, status="warn", message=f"not run: {outcome.not_run}")]
    if facts is None:
        return [replace(plain, status="fail", message=outcome.error or "no answer", fix=RESET)]
    wrong = facts["wrong"]
    if wrong:
        fix = PEER if outcome.test in ("peer_copy", "all_reduce") else RESET
        value = sum(wrong.values()) if isinstance(wrong, Mapping) else wrong
        return [
            replace(plain, status="fail", value=value, unit="wrong values", expected=0, message=_told(wrong), fix=fix)
        ]
    sample = samples.get(first)
    if outcome.test == "memory":
        return [_judge_memory(plain, facts, sample)]
    return [
        _rate(replace(plain, name=name), value, expected)
        for name, value, expected in _rates(outcome.test, facts, sample)
    ]


def _told(wrong: Mapping[str, int] | int) -> str:
    if isinstance(wrong, int):
        return f"{wrong} values came back as others"
    return ", ".join(f"{count} words of pattern {name}" for name, count in wrong.items()) + " came back as others"


def _judge_memory(plain: TestResult, facts: Mapping[str, Any], sample: GpuSample | None) -> TestResult:
    tested, whole = float(facts["bytes"]), None if sample is None else sample.gpu.memory_bytes
    share = "" if not whole else f", {tested / whole:.0%} of all"
    message = f"{tested / (1 << 30):.1f} GiB written and read back{share}"
    if not tested:
        fix = "end what holds the GPU's memory, and test again"
        return replace(plain, status="warn", value=0.0, unit="bytes", message="no memory is free to be tested", fix=fix)
    return replace(plain, value=tested, unit="bytes", message=message)


def _rates(test: str, facts: Mapping[str, Any], sample: GpuSample | None) -> list[tuple[str, float, float | None]]:
    """Name, value and least right value of each rate that a test has measured."""
    name = "" if sample is None else sample.gpu.name
    if test == "product":
        peak = peak_flops(name, {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[facts["dtype"]])
        return [(test, facts["flops_per_s"], None if peak is None else peak * LEAST_OF_PEAK[test])]
    if test == "device_copy":
        row = find_peak(name)
        peak = None if row is None else row.memory
        return [(test, facts["bytes_per_s"], None if peak is None else peak * LEAST_OF_PEAK[test])]
    if test == "host_copy":
        link = None if sample is None else pcie_bytes_per_s(sample)
        least = None if link is None else link * LEAST_OF_PCIE
        return [(f"copy_{way}", facts[f"{way}_bytes_per_s"], least) for way in ("to_device", "to_host")]
    if test == "peer_copy":
        return [(test if facts["direct"] is not False else "peer_copy_through_host", facts["bytes_per_s"], None)]
    return [(test, facts["bus_bytes_per_s"], None)]


def pcie_bytes_per_s(sample: GpuSample) -> float | None:
    """Pure: what the link of a GPU can carry each way at its widest and fastest; None where that is not known."""
    lane = PCIE_LANE_BYTES_PER_S.get(sample.max_pcie_generation or 0)
    return None if lane is None or not sample.max_pcie_width else lane * sample.max_pcie_width


def _rate(plain: TestResult, value: float, expected: float | None) -> TestResult:
    unit = "FLOP/s" if plain.name == "product" else "bytes/s"
    result = replace(plain, value=value, unit=unit, expected=expected, message=amount(value, unit))
    return result if expected is None or value >= expected else _slow(result, "at least", expected)


def _slow(result: TestResult, words: str, expected: float) -> TestResult:
    message = f"{result.message}, {words} {amount(expected, result.unit)} expected"
    return replace(result, status="warn", expected=expected, message=message, fix=SLOW)


def amount(value: float, unit: str) -> str:
    """Pure: a rate for people."""
    return f"{value / 1e12:.1f} TFLOP/s" if unit == "FLOP/s" else f"{value / 1e9:.1f} GB/s"


def _compared(results: Sequence[TestResult], samples: Mapping[str, GpuSample], topology: Topology) -> list[TestResult]:
    """The same, with a warning where a GPU or a pair is far slower than its likes here."""
    kinds = [_kind(result, samples, topology) for result in results]
    likes: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for result, kind in zip(results, kinds, strict=True):
        if result.value is not None and result.unit.endswith("/s"):
            likes[kind].append(result.value)
    told = []
    for result, kind in zip(results, kinds, strict=True):
        least = LEAST_OF_LIKE * statistics.median(likes[kind]) if len(likes[kind]) > 1 else 0.0
        if result.status == "ok" and result.unit.endswith("/s") and (result.value or 0.0) < least:
            result = _slow(result, "by its likes here", least)
        told.append(result)
    return told


def _kind(result: TestResult, samples: Mapping[str, GpuSample], topology: Topology) -> tuple[str, ...]:
    """What rates may be compared by: the test, the names of the GPUs, and of a pair the kind of its link."""
    names = [samples[uuid].gpu.name if uuid in samples else uuid for uuid in (result.uuid, *result.others)]
    link = topology.link(result.uuid, result.others[0]) if len(result.others) == 1 else None
    return (result.name, str(link), *sorted(names))
