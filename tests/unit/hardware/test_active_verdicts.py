from __future__ import annotations

from typing import Any

import pytest

from drumline.hardware.active_verdicts import Outcome, TestResult, amount, judge, pcie_bytes_per_s
from drumline.hardware.records import Gpu, GpuSample
from drumline.hardware.topology import Link, Topology

H100, UNKNOWN = "NVIDIA H100 80GB HBM3", "NVIDIA Unheard-of"


def sample(uuid: str, name: str = H100, **values: Any) -> GpuSample:
    return GpuSample(Gpu(uuid, name, 0, 80 << 30, (9, 0)), 0.0, **values)


def judged(*outcomes: Outcome, name: str = H100, topology: Topology | None = None, **values: Any) -> list[TestResult]:
    uuids = {uuid for outcome in outcomes for uuid in outcome.uuids}
    return judge(outcomes, {uuid: sample(uuid, name, **values) for uuid in uuids}, topology)


def outcome(test: str, *uuids: str, wrong: Any = 0, **facts: Any) -> Outcome:
    return Outcome(test, uuids or ("a",), {"wrong": wrong, **facts})


def product(rate: float, uuid: str = "a", **facts: Any) -> Outcome:
    return outcome("product", uuid, flops_per_s=rate, dtype="bfloat16", **facts)


def test_memory_that_came_back_as_it_was() -> None:
    (result,) = judged(outcome("memory", bytes=60 << 30, seconds=2.0, wrong={}))
    assert (result.status, result.value, result.unit) == ("ok", 60 << 30, "bytes")
    assert result.message == "60.0 GiB written and read back, 75% of all"


def test_memory_that_changed_fails_with_the_patterns() -> None:
    (result,) = judged(outcome("memory", bytes=60 << 30, seconds=2.0, wrong={"01": 3, "addresses": 4}))
    assert (result.status, result.value, result.expected) == ("fail", 7, 0)
    assert result.message == "3 words of pattern 01, 4 words of pattern addresses came back as others"
    assert result.fix is not None and "--gpu-reset" in result.fix


def test_memory_of_which_nothing_is_free_is_told() -> None:
    (result,) = judged(outcome("memory", bytes=0, seconds=0.0, wrong={}))
    assert (result.status, result.message) == ("warn", "no memory is free to be tested")


@pytest.mark.parametrize(("test", "words"), [("product", "--gpu-reset"), ("peer_copy", "NCCL_P2P_DISABLE=1")])
def test_wrong_values_fail_with_what_helps(test: str, words: str) -> None:
    (result,) = judged(outcome(test, "a", "b", wrong=12, bytes_per_s=1e9, flops_per_s=1e12, dtype="bfloat16"))
    assert (result.status, result.message, result.others) == ("fail", "12 values came back as others", ("b",))
    assert result.fix is not None and words in result.fix


@pytest.mark.parametrize(("rate", "status"), [(700e12, "ok"), (390e12, "warn")])
def test_a_product_is_held_against_the_data_sheet(rate: float, status: str) -> None:
    (result,) = judged(product(rate))
    assert result.status == status
    assert result.expected == pytest.approx(0.4 * 989.4e12)
    assert result.message.startswith(amount(rate, "FLOP/s"))
    assert (result.fix is None) == (status == "ok")


def test_a_card_that_nobody_knows_is_not_judged_by_its_rate() -> None:
    (result,) = judged(product(1.0), name=UNKNOWN)
    assert (result.status, result.expected) == ("ok", None)


def test_copies_with_the_host_are_held_against_the_pcie_link() -> None:
    facts = outcome("host_copy", to_device_bytes_per_s=55e9, to_host_bytes_per_s=20e9)
    to_device, to_host = judged(facts, max_pcie_generation=5, max_pcie_width=16, pcie_generation=1)
    assert (to_device.name, to_device.status) == ("copy_to_device", "ok")
    assert (to_host.name, to_host.status) == ("copy_to_host", "warn")
    assert to_host.message == "20.0 GB/s, at least 31.5 GB/s expected"
    assert [result.expected for result in judged(facts)] == [None, None]
    assert pcie_bytes_per_s(sample("a", max_pcie_generation=99, max_pcie_width=16)) is None


def test_a_gpu_that_is_slower_than_its_likes_is_told() -> None:
    results = judged(
        *(product(rate, uuid) for uuid, rate in zip("abcd", (700e12, 690e12, 500e12, 695e12), strict=True))
    )
    assert [result.status for result in results] == ["ok", "ok", "warn", "ok"]
    assert results[2].message == "500.0 TFLOP/s, by its likes here 554.0 TFLOP/s expected"


def test_other_cards_are_no_likes() -> None:
    outcomes = [product(700e12, "a"), product(100e12, "b")]
    results = judge(outcomes, {"a": sample("a"), "b": sample("b", UNKNOWN)})
    assert [result.status for result in results] == ["ok", "ok"]


def test_pairs_are_compared_with_pairs_of_the_same_link() -> None:
    rates = {("a", "b"): 300e9, ("c", "d"): 290e9, ("a", "c"): 25e9, ("b", "d"): 24e9, ("a", "d"): 10e9}
    links = tuple(Link(*pair, nvlinks=18 if rate > 1e11 else 0, level=50) for pair, rate in rates.items())
    outcomes = [outcome("peer_copy", *pair, bytes_per_s=rate, direct=True) for pair, rate in rates.items()]
    results = judged(*outcomes, topology=Topology(links=links))
    assert [result.status for result in results] == ["ok", "ok", "ok", "ok", "warn"]


def test_a_copy_that_takes_the_way_through_the_host_says_so() -> None:
    (result,) = judged(outcome("peer_copy", "a", "b", bytes_per_s=9e9, direct=False))
    assert (result.name, result.status) == ("peer_copy_through_host", "ok")


def test_errors_fail_and_what_they_kept_from_running_is_told() -> None:
    failed, kept = judge([Outcome("memory", ("a",), error="hangs"), Outcome("product", ("a",), not_run="x")], {})
    assert (failed.status, failed.message) == ("fail", "hangs")
    assert (kept.status, kept.message, kept.fix) == ("warn", "not run: x", None)


def test_an_all_reduce_has_a_rate_and_no_expectation() -> None:
    (result,) = judged(outcome("all_reduce", "a", "b", bus_bytes_per_s=300e9))
    assert (result.status, result.value, result.unit, result.others) == ("ok", 300e9, "bytes/s", ("b",))
