from __future__ import annotations

from typing import Any

import pytest

from drumline.track.soundness import CHECKS, verdicts

UUIDS = ("GPU-a", "GPU-b")


def result(*ranks: dict[str, Any], rate: float = 1500.0, wrong: int = 0) -> dict[str, Any]:
    """What ranks in order give; each keyword of a rank replaces what it would say."""
    sound = [{"device": uuid, "parameters": "same", "moved": True} for uuid in UUIDS]
    row = {"collective": "all_reduce", "bytes": 2**20, "bus_bytes_per_s": 2.5e9}
    others = {"collective": "broadcast", "bytes": 2**20, "bus_bytes_per_s": 1.0}
    return {
        "ranks": [{**one, **other} for one, other in zip(sound, ranks or ({}, {}), strict=False)],
        "comm": {"world_size": 2, "backend": "nccl", "wrong_sums": wrong, "rows": [others, row]},
        "unit": "tokens",
        "units_per_s": rate,
    }


ALONE = result({}, rate=1000.0)


def test_ranks_in_order_are_ok_in_every_line() -> None:
    found = verdicts(result(), ALONE, UUIDS, "nvml")
    assert [each.name for each in found] == list(CHECKS)
    assert all(each.is_ok for each in found)
    assert "2 ranks, each on its own GPU" in found[0].message
    assert "1 MiB between 2 ranks over nccl" in found[1].message and "2.50 GB/s" in found[1].message
    assert "1.50 times" in found[3].message and "1,500 tokens/s against 1,000" in found[3].message


@pytest.mark.parametrize(
    ("together", "name", "words"),
    [
        (result({}, {"device": "GPU-a"}), "devices", "several ranks are on GPU-a"),
        (result({}, {"device": "GPU-c"}), "devices", "should be on GPU-a, GPU-b"),
        (result(wrong=3), "all-reduce", "3 sums are wrong"),
        (result({}, {"parameters": "other"}), "parameters", "rank 1 are not those of rank 0"),
        (result({"moved": False}, {"moved": False}), "parameters", "not changed"),
        (result(rate=900.0), "speed", "0.90 times"),
    ],
)
def test_a_fault_fails_its_line_alone(together: dict[str, Any], name: str, words: str) -> None:
    found = verdicts(together, ALONE, UUIDS, "nvml")
    [failed] = [each for each in found if not each.is_ok]
    assert failed.name == name and words in failed.message


def test_processes_of_the_cpu_are_told_and_may_share_its_cores() -> None:
    slow = result({"device": "process 1"}, {"device": "process 2"}, rate=900.0)
    found = verdicts(slow, ALONE, (), "no NVIDIA driver")
    assert all(each.is_ok for each in found)
    assert found[0].message == "no GPU is visible (no NVIDIA driver): 2 processes on the CPU"


def test_one_gpu_has_nobody_to_compare_with() -> None:
    found = verdicts({**ALONE, "comm": None}, ALONE, UUIDS[:1], "nvml")
    assert all(each.is_ok for each in found)
    assert "nobody" in found[1].message and found[3].message == "1,000 tokens/s on one GPU"
