"""The active tests on real GPUs: none fails, and their rates are those of GPUs."""

from __future__ import annotations

import pytest

from drumline.hardware.active_tests import Setup, run_tests
from drumline.hardware.inventory import detect

pytestmark = pytest.mark.gpu

SIZES = {"memory_bytes": 4 << 30, "seconds": 0.1}


def test_sound_gpus_fail_nothing() -> None:
    uuids = [gpu.uuid for gpu in detect().gpus]
    results = run_tests(uuids, 200, setup=Setup(sizes=SIZES))
    assert [result for result in results if result.status == "fail"] == []
    names = {result.name for result in results}
    assert {"memory", "device_copy", "product", "copy_to_device", "copy_to_host"} <= names
    if len(uuids) > 1:
        assert "all_reduce" in names and names & {"peer_copy", "peer_copy_through_host"}
    rates = {result.name: result.value for result in results}
    # Slower than any card with tensor cores, and faster than what a clock that does not wait for the GPU would show.
    assert 1e13 < (rates["product"] or 0) < 1e16
    assert 1e11 < (rates["device_copy"] or 0) < 2e13
    assert 1e9 < (rates["copy_to_host"] or 0) < 1e12
