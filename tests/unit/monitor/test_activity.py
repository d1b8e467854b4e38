from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.hardware.records import GpuSample, Pipes
from drumline.monitor.activity import activity, explain, link_bytes_per_s
from tests.unit.monitor.snapshots import sample


def pipes(sm_active: float | None, **values: float | None) -> Pipes:
    quiet = {"tensor_active": 0.0, "fp16_active": 0.0, "fp32_active": 0.0, "fp64_active": 0.0, "dram_active": 0.001}
    return Pipes(1.0, sm_active, **{**quiet, **values})


def h100(utilization: float | None, units: Pipes | None, **values: Any) -> GpuSample:
    power = {"power_w": 200.0, "power_limit_w": 700.0}
    return sample(utilization=utilization, pipes=units, **{**power, **values})


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (h100(1.0, pipes(0.9, tensor_active=0.5, dram_active=0.4)), "working"),
        (h100(1.0, pipes(0.98, fp32_active=0.1)), "working"),
        (h100(1.0, pipes(0.9)), "working"),  # integer work: all multiprocessors are busy
        (h100(1.0, pipes(0.1, fp32_active=0.02)), "working"),  # a small model
        (h100(1.0, pipes(0.2, dram_active=0.3)), "working"),  # a small copy kernel
        (h100(1.0, pipes(0.18)), "waiting"),
        (h100(1.0, pipes(0.18, dram_active=0.1), pcie_tx_bytes_per_s=2e10), "communicating"),
        (h100(1.0, pipes(0.18), pcie_tx_bytes_per_s=2e6), "waiting"),
        (h100(0.0, pipes(0.0)), "idle"),
        (h100(0.0, pipes(0.0), pcie_rx_bytes_per_s=2e10), "communicating"),  # a copy engine needs no kernel
        (h100(None, pipes(0.0)), "idle"),
        (h100(None, pipes(0.9)), "working"),
        (h100(1.0, Pipes(1.0, sm_active=0.1)), "unknown"),
        (h100(1.0, Pipes(1.0)), "unknown"),
    ],
)
def test_with_gpm(seen: GpuSample, expected: str) -> None:
    assert activity(seen) == expected
    assert explain(seen).kind == expected and explain(seen).reason


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"power_w": 380.0}, "working"),
        ({"memory_utilization": 0.4}, "working"),
        ({"power_w": 90.0, "memory_utilization": 0.0}, "unknown"),
        ({"power_w": 90.0, "memory_utilization": 0.0, "pcie_tx_bytes_per_s": 1.2e10}, "communicating"),
        ({}, "unknown"),
        ({"power_w": 380.0, "power_limit_w": None}, "unknown"),
    ],
)
def test_without_gpm_nothing_is_claimed_that_cannot_be_told(values: dict[str, Any], expected: str) -> None:
    seen = sample(utilization=1.0, **{"power_limit_w": 400.0, **values})
    assert activity(seen) == expected


def test_nothing_said_is_unknown() -> None:
    assert activity(sample()) == "unknown"


def test_nvlink_needs_two_looks() -> None:
    first = h100(1.0, pipes(0.18), nvlink_tx_bytes=10**12, nvlink_rx_bytes=10**12)
    second = h100(1.0, pipes(0.18), nvlink_tx_bytes=10**12 + 6 * 10**11, nvlink_rx_bytes=10**12, time=1002.0)
    assert activity(second) == "unknown", "one look does not tell a collective that moves data from one that waits"
    assert activity(replace(second, nvlink_tx_bytes=10**12), first) == "waiting"
    assert link_bytes_per_s(second, first) == 3e11
    assert activity(second, first) == "communicating"
    assert activity(second, replace(first, time=0.0)) == "unknown", "an average over a quarter of an hour is not now"
    assert link_bytes_per_s(first, second) is None, "time does not run backwards"


def test_counters_that_were_reset_say_nothing() -> None:
    first = h100(1.0, pipes(0.18), nvlink_tx_bytes=10**13, nvlink_rx_bytes=10**13)
    second = h100(1.0, pipes(0.18), nvlink_tx_bytes=10**9, nvlink_rx_bytes=10**14, time=1002.0)
    assert link_bytes_per_s(second, first) is None


def test_the_reason_has_the_figures() -> None:
    assert explain(h100(1.0, pipes(0.18))).reason == (
        "a kernel runs for 100% of the time, but only 18% of the multiprocessors active, "
        "0.0% of the time with arithmetic"
    )
    assert "3.5 GB/s over its links" in explain(h100(0.0, pipes(0.0), pcie_rx_bytes_per_s=3.5e9)).reason
