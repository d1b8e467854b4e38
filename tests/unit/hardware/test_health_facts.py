from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from drumline.hardware.health_facts import HealthFacts, read_health
from drumline.hardware.session import open_session
from tests.simulated_nvml import (
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedLink,
    SimulatedNvml,
)


def read(*gpus: SimulatedGpu) -> tuple[HealthFacts, ...]:
    with open_session(SimulatedNvml(gpus)) as session:
        return read_health(session)


def only(gpu: SimulatedGpu) -> HealthFacts:
    (facts,) = read(gpu)
    return facts


def test_a_sound_gpu_tells_zeros_and_says_what_it_does_not_have() -> None:
    facts = only(SimulatedGpu("GPU-a", pci="00000000:3B:00.0"))
    assert facts.pci_address == "0000:3b:00.0"
    assert (facts.ecc_uncorrected, facts.ecc_uncorrected_ever, facts.ecc_corrected) == (0, 0, 0)
    assert (facts.rows_pending, facts.rows_failed, facts.rows_remapped) == (False, False, 0)
    assert (facts.nvlinks, facts.nvlinks_up, facts.nvlinks_up_of_peers) == (18, 18, None)
    assert (facts.pcie_replays, facts.nvlink_crc_errors, facts.nvlink_replays, facts.nvlink_recoveries) == (0, 0, 0, 0)
    assert (facts.recovery_action, facts.lost) == ("none", None)
    assert facts.pages_retired is None and facts.refused["pages_retired"] == "not supported"
    assert facts.refused["sram_threshold_exceeded"] == "not supported"


# By link, and no totals.
NVLINK_4: dict[Any, Any] = {38: None, 45: None, 52: None, 59: None} | {
    (163, 0): 5,
    (163, 17): 6,
    (161, 3): 7,
    (162, 4): 8,
}


def sram(exceeded: int) -> Any:
    def answer(status: Any) -> int:
        status._obj.bThresholdExceeded = exceeded
        return 0

    return answer


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({"ecc": {(1, 0): 2}}, {"ecc_uncorrected": 2}),
        ({"ecc": {(1, 1): 3}}, {"ecc_uncorrected_ever": 3}),
        ({"ecc": {(0, 0): 4}}, {"ecc_corrected": 4}),
        (
            {"values": {"nvmlDeviceGetRemappedRows": (1, 2, 1, 1)}},
            {"rows_remapped": 2, "rows_pending": True, "rows_failed": True},
        ),
        ({"values": {"nvmlDeviceGetSramEccErrorStatus": sram(1)}}, {"sram_threshold_exceeded": True}),
        ({"values": {"nvmlDeviceGetSramEccErrorStatus": sram(0)}}, {"sram_threshold_exceeded": False}),
        (
            {
                "values": {
                    "nvmlDeviceGetRetiredPages": lambda cause: [0x1000] * (3, 2)[cause],
                    "nvmlDeviceGetRetiredPagesPendingStatus": 1,
                }
            },
            {"pages_retired": 5, "pages_retired_uncorrected": 2, "pages_pending": True},
        ),
        ({"values": {"nvmlDeviceGetPcieReplayCounter": 9}}, {"pcie_replays": 9}),
        ({"links": [SimulatedLink()] * 17 + [SimulatedLink(active=False)]}, {"nvlinks": 18, "nvlinks_up": 17}),
        ({"fields": {230: 4}}, {"recovery_action": "let its programs end, then reset the GPU"}),
        ({"fields": {230: 77}}, {"recovery_action": "unknown (77)"}),
        (
            {"fields": {38: 1, 45: 2, 52: 3, 59: 4}},
            {"nvlink_crc_errors": 3, "nvlink_replays": 3, "nvlink_recoveries": 4},
        ),
        (
            {"fields": NVLINK_4},
            {"nvlink_crc_errors": 11, "nvlink_replays": 7, "nvlink_recoveries": 8},
        ),
    ],
)
def test_every_counter_arrives_in_its_field(gpu: dict[str, Any], expected: dict[str, Any]) -> None:
    told: dict[Any, Any] = dict(SimulatedGpu("").fields)
    told.update(gpu.get("fields", {}))
    given = {name: value for name, value in told.items() if value is not None}
    facts = only(SimulatedGpu("GPU-a", **{**gpu, "fields": given}))
    assert {name: getattr(facts, name) for name in expected} == expected
    assert not set(expected) & set(facts.refused)


def test_a_gpu_that_refuses_everything_has_a_reason_for_everything() -> None:
    refusing = SimulatedGpu("GPU-a")
    refusing.errors = dict.fromkeys(
        (
            "nvmlDeviceGetTotalEccErrors",
            "nvmlDeviceGetPcieReplayCounter",
            "nvmlDeviceGetSramEccErrorStatus",
            "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetRetiredPages",
            "nvmlDeviceGetRetiredPagesPendingStatus",
            "nvmlDeviceGetFieldValues",
        ),
        NO_PERMISSION,
    )
    refusing.errors["nvmlDeviceGetNvLinkState"] = NOT_SUPPORTED
    facts = only(refusing)
    known = {"uuid", "time", "pci_address", "refused"}
    told = {field.name for field in fields(facts) if getattr(facts, field.name) is not None}
    assert told == known
    assert set(facts.refused.values()) == {"no permission", "not supported"}
    assert facts.lost is None


def test_an_old_binding_is_no_error() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    nvml.missing = {"c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues"}
    with open_session(nvml) as session:
        (facts,) = read_health(session)
    assert facts.rows_failed is None and "nvidia-ml-py is too old" in facts.refused["rows_failed"]
    assert facts.sram_threshold_exceeded is None


@pytest.mark.parametrize("function", ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetNvLinkState"])
@pytest.mark.parametrize(("code", "reason"), [(GPU_IS_LOST, "fell off the bus"), (RESET_REQUIRED, "needs a reset")])
def test_a_gpu_that_is_lost_in_the_middle_is_told_and_asked_no_more(function: str, code: int, reason: str) -> None:
    gone = SimulatedGpu("GPU-a", errors={function: code})
    nvml = SimulatedNvml([gone, SimulatedGpu("GPU-b")])
    with open_session(nvml) as session:
        facts = {one.uuid: one for one in read_health(session)}
        assert reason in str(facts["GPU-a"].lost) and facts["GPU-b"].lost is None
        asked = gone.asks
        again = {one.uuid: one for one in read_health(session)}
        assert reason in str(again["GPU-a"].lost)
        assert gone.asks == asked


def test_nvlinks_are_compared_with_gpus_of_the_same_name_only() -> None:
    bare = SimulatedGpu("GPU-c", name="NVIDIA A40", links=[])
    broken = SimulatedGpu("GPU-b", links=[SimulatedLink(active=number > 1) for number in range(18)])
    split = SimulatedGpu(
        "GPU-d", instances={0: SimulatedInstance("MIG-d", 1)}, links=[SimulatedLink(active=False)] * 18
    )
    facts = {one.uuid: one for one in read(SimulatedGpu("GPU-a"), broken, bare, split)}
    assert set(facts) == {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}
    assert [(facts[uuid].nvlinks_up, facts[uuid].nvlinks_up_of_peers) for uuid in sorted(facts)] == [
        (18, 18),
        (16, 18),
        (None, None),
        (0, None),
    ]


def test_without_driver_there_are_no_facts() -> None:
    with open_session(SimulatedNvml([], {"nvmlInit": 9})) as session:
        assert read_health(session) == ()
