from __future__ import annotations

from typing import Any

import pytest

from drumline.hardware.check import Check
from drumline.hardware.gpu_checks import gpu_checks

FINDING = {
    "code": "rows_failed",
    "status": "fail",
    "message": "a row of its memory could not be replaced",
    "action": "tell the vendor's support",
    "source": "NVIDIA GPU Memory Error Management",
}


def facts(**changed: Any) -> dict[str, Any]:
    """Two GPUs that this process may use and a hidden one, all sound, nobody on them."""
    gpus = [
        {"uuid": f"GPU-{letter}", "index": index, "name": "NVIDIA H100 80GB HBM3", "cuda_index": place, "parent": None}
        | {"peak_source": "a paper"}
        for index, (letter, place) in enumerate([("a", 1), ("b", 0), ("c", None)])
    ]
    health = [{"uuid": gpu["uuid"], "status": "ok", "findings": [], "taken": None} for gpu in gpus]
    return {"gpus": gpus, "health": health, "xids": [], "kernel_log": None, "gpu_silence": None} | changed


def told(**changed: Any) -> list[Check]:
    return list(gpu_checks(facts(**changed)))


def bad(found: list[Check]) -> list[Check]:
    return [check for check in found if check.status != "ok"]


def test_sound_gpus_have_no_complaint() -> None:
    found = told()
    assert bad(found) == []
    assert [(check.name, check.message) for check in found] == [
        ("gpu health", "nothing is wrong with GPU 0, GPU 1"),
        ("xids", "none within the last day"),
        ("peak rates", "NVIDIA H100 80GB HBM3: a paper"),
    ]


def test_a_finding_is_a_check_with_its_action() -> None:
    changed = facts()["health"]
    changed[1] |= {"status": "fail", "findings": [FINDING]}
    (check,) = bad(told(health=changed))
    assert (check.name, check.status) == ("gpu health", "fail")
    assert check.message == "GPU 1: a row of its memory could not be replaced"
    assert check.fix == "tell the vendor's support (NVIDIA GPU Memory Error Management)"


def test_a_gpu_that_this_process_may_not_use_is_nobodys_complaint() -> None:
    changed = facts()["health"]
    changed[2] |= {"status": "fail", "findings": [FINDING]}
    assert bad(told(health=changed)) == []


def test_a_stranger_on_a_gpu_is_a_warning() -> None:
    changed = facts()["health"]
    changed[0]["taken"] = "taken: process 4711 of ann computes on it"
    (check,) = bad(told(health=changed))
    assert (check.name, check.status) == ("gpu processes", "warn")
    assert check.message == "GPU 0 is taken: process 4711 of ann computes on it"


def test_the_last_xid_of_a_program_is_told_without_blame() -> None:
    xid = {
        "uuid": "GPU-b",
        "pci_address": "0000:1b:00.0",
        "code": 31,
        "time": 0.0,
        "title": "page fault",
        "status": "ok",
    }
    found = {check.name: check for check in told(xids=[xid, xid | {"code": 13}])}
    assert found["xids"].status == "ok"
    assert found["xids"].message.startswith("2 of programs within the last day, the last XID 13 on GPU 1 at ")


def test_a_log_that_cannot_be_read_is_told() -> None:
    found = {check.name: check for check in told(kernel_log="the kernel's log cannot be read (dmesg: not permitted)")}
    assert found["xids"].status == "ok" and "dmesg: not permitted" in found["xids"].message


def test_a_card_without_known_peak_is_told() -> None:
    gpus = facts()["gpus"]
    gpus[0] |= {"name": "NVIDIA X1", "peak_source": None}
    found = {check.name: check for check in told(gpus=gpus)}
    assert found["peak rates"].message == "not known of NVIDIA X1: runs on it show no MFU"


def test_a_driver_that_was_silent_is_a_warning() -> None:
    (check,) = told(health=[], gpu_silence="the driver did not answer within 20 s")
    assert (check.name, check.status) == ("gpu health", "warn")
    assert "did not answer within 20 s" in check.message


@pytest.mark.parametrize("changed", [{"health": None}, {"gpus": [], "health": [], "gpu_silence": "no NVIDIA driver"}])
def test_without_gpus_there_is_nothing_to_say(changed: dict[str, Any]) -> None:
    assert told(**changed) == []


def test_facts_of_a_shallow_look_hold_nothing_about_health() -> None:
    assert list(gpu_checks({"gpus": facts()["gpus"]})) == []
