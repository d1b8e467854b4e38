from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from drumline.bench import gpu_tests
from drumline.bench.gpu_tests import run, steps
from drumline.bench.gpu_work import Sizes

CPU = torch.device("cpu")
SMALL = {"memory_bytes": 1 << 12, "copy_bytes": 1 << 12, "product": 64, "seconds": 0.0}


def test_pairs_go_both_ways_and_one_gpu_needs_no_others() -> None:
    tests = ["host_copy", "peer_copy", "all_reduce"]
    three = [(name, places) for name, places, _ in steps(tests, [CPU] * 3, Sizes())]
    assert three[:3] == [("host_copy", [0]), ("host_copy", [1]), ("host_copy", [2])]
    assert [places for name, places in three if name == "peer_copy"] == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert three[-1] == ("all_reduce", [0, 1, 2])
    assert [name for name, _, _ in steps(tests, [CPU], Sizes())] == ["host_copy"]


def records(**spec: Any) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    run({"device": "cpu", "num_gpus": 2, "sizes": SMALL, **spec}, found.append)
    return found


def test_every_test_runs_on_the_cpu_and_its_values_are_right() -> None:
    found = records(tests=["memory", "device_copy", "product", "host_copy", "peer_copy", "all_reduce"])
    begun = [(record["begin"], record["gpus"]) for record in found if "begin" in record]
    ended = [(record["test"], record["gpus"]) for record in found if "test" in record]
    assert begun == ended and len(ended) == 4 * 2 + 2 + 1
    facts = {record["test"]: record["facts"] for record in found if "test" in record}
    assert not any(each["wrong"] for each in facts.values())
    assert facts["memory"]["bytes"] == 1 << 12
    rates = [value for each in facts.values() for name, value in each.items() if name.endswith("per_s")]
    assert len(rates) == 6 and min(rates) > 0
    assert facts["product"]["dtype"] == "float32"
    assert facts["peer_copy"]["direct"] is None


def test_a_test_that_fails_is_an_answer_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device, sizes: Sizes) -> dict[str, Any]:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nand more lines")

    monkeypatch.setitem(gpu_tests.ONE_GPU, "memory", broken)
    found = [record for record in records(tests=["memory", "device_copy"], num_gpus=1) if "test" in record]
    assert found[0] == {
        "test": "memory",
        "gpus": [0],
        "error": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    }
    assert found[1]["facts"]["wrong"] == 0


def test_other_gpus_than_asked_for_are_refused() -> None:
    with pytest.raises(SystemExit, match="CUDA shows 0 GPU"):
        records(device="cuda", num_gpus=2, tests=[])
