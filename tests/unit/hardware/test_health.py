from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline.hardware.health import (
    MANY_RETIRED_PAGES,
    MAX_NVLINK_CRC_PER_S,
    MAX_PCIE_REPLAYS_PER_MINUTE,
    MAX_RETIRED_PAGES,
    XID_AGE_S,
    judge,
    read_verdicts,
    verdicts,
)
from drumline.hardware.health_facts import RECOVERY_ACTIONS, HealthFacts
from drumline.hardware.records import Gpu, GpuSample
from drumline.hardware.sample import THROTTLES
from drumline.hardware.xids import Xid
from tests.simulated_nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, SimulatedGpu, SimulatedInstance, SimulatedNvml

GPU = Gpu("GPU-a", "NVIDIA H100 80GB HBM3", 0, 80 << 30, (9, 0), "0000:3b:00.0")
START = 1_700_000_000.0
LOOKS_S = 15.0
RECORDED = Path(__file__).with_name("recorded")


def good_trace() -> Iterator[tuple[HealthFacts, GpuSample]]:
    """A sound H100: it idles, works at its power limit, and idles again; counters grow as those of sound ones do."""
    for look in range(40):
        busy = 10 <= look < 30
        now = START + look * LOOKS_S
        facts = HealthFacts(
            uuid=GPU.uuid,
            time=now,
            pci_address=GPU.pci_address,
            recovery_action="none",
            ecc_uncorrected=0,
            ecc_uncorrected_ever=0,
            ecc_corrected=look // 20,
            sram_threshold_exceeded=False,
            rows_pending=False,
            rows_failed=False,
            rows_remapped=0,
            pcie_replays=3 + look // 10,
            nvlinks=18,
            nvlinks_up=18,
            nvlinks_up_of_peers=18,
            nvlink_crc_errors=look,
            nvlink_replays=7,
            nvlink_recoveries=1,
            refused={"pages_retired": "not supported"},
        )
        sample = GpuSample(
            GPU,
            now,
            utilization=1.0 if busy else 0.0,
            temperature_c=68.0 if busy else 31.0,
            power_w=698.0 if busy else 71.0,
            power_limit_w=700.0,
            throttled_by=("power limit",) if busy else (),
            pcie_generation=5 if busy else 1,
            max_pcie_generation=5,
            pcie_width=16,
            max_pcie_width=16,
        )
        yield facts, sample


def recorded(path: Path) -> Iterator[tuple[list[HealthFacts], list[GpuSample]]]:
    """The looks of benchmarks/record_health.py at real GPUs; what the rules do not read is left out."""
    unread = {"gpu", "pipes", "processes"}
    for line in path.read_text().splitlines():
        told = json.loads(line)
        samples = [
            GpuSample(
                gpu=Gpu(**{**one["gpu"], "compute_capability": tuple(one["gpu"]["compute_capability"])}),
                **{name: value for name, value in one.items() if name not in unread},
            )
            for one in told["samples"]
        ]
        yield [HealthFacts(**one) for one in told["facts"]], samples


@pytest.mark.parametrize(
    "path", [None, *sorted(RECORDED.glob("*.jsonl"))], ids=lambda path: path.name if path else "made up"
)
def test_a_good_trace_raises_nothing(path: Path | None) -> None:
    looks = recorded(path) if path else (([facts], [sample]) for facts, sample in good_trace())
    before: list[HealthFacts] = []
    for number, (facts, samples) in enumerate(looks):
        found = verdicts(facts, samples, before=before)
        assert len(found) == len(samples) > 0
        assert [(number, finding) for verdict in found.values() for finding in verdict.findings] == []
        before = facts
    assert before


def test_a_driver_that_says_nothing_is_no_finding() -> None:
    facts = HealthFacts("GPU-a", START, refused={"ecc_uncorrected": "no permission"})
    assert judge(facts) == judge(facts, GpuSample(GPU, START), before=facts)
    assert judge(facts).status == "ok"


def xid(code: int, *, text: str = "", origin: Any = "event", uuid: str | None = "GPU-a", age_s: float = 60.0) -> Xid:
    return Xid(uuid, "0000:3b:00.0", code, START + LOOKS_S - age_s, text, origin)


# What is planted into a sound GPU (facts, sample, XIDs), and the one finding that it must give.
PLANTED: list[tuple[dict[str, Any], dict[str, Any], list[Xid], str, str]] = [
    ({"lost": "the GPU is lost: it fell off the bus"}, {}, [], "lost", "fail"),
    ({"ecc_uncorrected": 1, "ecc_uncorrected_ever": 1}, {}, [], "ecc_uncorrected", "fail"),
    ({"ecc_uncorrected_ever": 2}, {}, [], "ecc_uncorrected_ever", "warn"),
    ({"sram_threshold_exceeded": True}, {}, [], "sram_threshold", "fail"),
    ({"rows_failed": True}, {}, [], "rows_failed", "fail"),
    ({"rows_pending": True}, {}, [], "rows_pending", "warn"),
    ({"pages_retired": MAX_RETIRED_PAGES, "pages_retired_uncorrected": 0}, {}, [], "pages_retired", "fail"),
    (
        {"pages_retired": MANY_RETIRED_PAGES + 1, "pages_retired_uncorrected": MANY_RETIRED_PAGES + 1},
        {},
        [],
        "pages_retired",
        "warn",
    ),
    ({"pages_retired": 1, "pages_retired_uncorrected": 1, "pages_pending": True}, {}, [], "pages_pending", "warn"),
    ({"nvlinks_up": 17}, {}, [], "nvlink_down", "fail"),
    ({"nvlinks_up": 17, "nvlinks_up_of_peers": None}, {}, [], "nvlink_down", "fail"),
    ({"nvlink_crc_errors": round(MAX_NVLINK_CRC_PER_S * LOOKS_S)}, {}, [], "nvlink_errors", "fail"),
    ({"nvlink_replays": 8}, {}, [], "nvlink_errors", "warn"),
    ({"nvlink_recoveries": 2}, {}, [], "nvlink_errors", "warn"),
    ({"pcie_replays": 4 + MAX_PCIE_REPLAYS_PER_MINUTE}, {}, [], "pcie_replays", "warn"),
    ({}, {"pcie_width": 8}, [], "pcie_width", "warn"),
    ({}, {"throttled_by": ("power limit", "hardware slowdown", "heat (hardware)")}, [], "throttled_heat", "warn"),
    ({}, {"throttled_by": ("heat (software)",)}, [], "throttled_heat", "warn"),
    ({}, {"throttled_by": ("hardware slowdown", "power brake")}, [], "throttled_power_brake", "warn"),
    ({}, {"throttled_by": ("hardware slowdown",)}, [], "throttled_slowdown", "warn"),
    ({}, {}, [xid(79)], "xid_79", "fail"),
    ({}, {}, [xid(48), xid(48)], "xid_48", "fail"),
    ({}, {}, [xid(63, uuid=None)], "xid_63", "warn"),
    ({}, {}, [xid(149, text="NETIR_BER_EVENT Nonfatal XC0 i0 Link 04")], "xid_149", "warn"),
    ({}, {}, [xid(173)], "xid_173", "warn"),
    ({"recovery_action": RECOVERY_ACTIONS[1]}, {}, [], "recovery_action", "fail"),
    ({"recovery_action": RECOVERY_ACTIONS[2]}, {}, [], "recovery_action", "fail"),
    ({"recovery_action": RECOVERY_ACTIONS[4]}, {}, [], "recovery_action", "warn"),
    ({"recovery_action": "unknown (77)"}, {}, [], "recovery_action", "warn"),
]


@pytest.mark.parametrize(("facts", "sample", "xids", "code", "status"), PLANTED)
def test_each_planted_fault_gives_exactly_its_own_finding(
    facts: dict[str, Any], sample: dict[str, Any], xids: list[Xid], code: str, status: str
) -> None:
    (before, _), (now, look) = list(good_trace())[:2]
    verdict = judge(replace(now, **facts), replace(look, **sample), xids, before)
    assert [(finding.code, finding.status) for finding in verdict.findings] == [(code, status)]
    assert verdict.status == status
    (finding,) = verdict.findings
    assert finding.message == verdict.reason
    assert finding.action and finding.source


@pytest.mark.parametrize(
    ("facts", "sample", "xids"),
    [
        # As many as the limit allows, a counter that began anew, a link that never was, a program's own error.
        ({"pcie_replays": 3 + MAX_PCIE_REPLAYS_PER_MINUTE}, {}, []),
        ({"nvlink_crc_errors": round(MAX_NVLINK_CRC_PER_S * LOOKS_S) - 1}, {}, []),
        ({"nvlink_replays": 0, "nvlink_recoveries": 0, "pcie_replays": 0, "nvlink_crc_errors": 0}, {}, []),
        ({"pages_retired": MAX_RETIRED_PAGES - 1, "pages_retired_uncorrected": MANY_RETIRED_PAGES}, {}, []),
        ({"rows_remapped": 3, "ecc_corrected": 10_000}, {}, []),
        ({}, {"pcie_generation": 1}, []),
        ({}, {"pcie_width": 8, "max_pcie_width": 8}, []),
        ({}, {"throttled_by": ("power limit",)}, []),
        ({}, {}, [xid(13), xid(31), xid(43), xid(45)]),
        ({}, {}, [Xid("GPU-b", None, 79, START, "", "event"), Xid(None, "0000:4b:00.0", 79, START, "", "kernel log")]),
    ],
)
def test_what_sound_gpus_do_is_no_finding(facts: dict[str, Any], sample: dict[str, Any], xids: list[Xid]) -> None:
    (before, _), (now, look) = list(good_trace())[:2]
    assert judge(replace(now, **facts), replace(look, **sample), xids, before).findings == ()


def test_every_throttle_that_harms_is_a_finding() -> None:
    facts, look = next(good_trace())
    for word in THROTTLES.values():
        found = judge(facts, replace(look, throttled_by=(word,))).findings
        assert len(found) == (word != "power limit")


def test_old_counters_alone_say_nothing() -> None:
    facts, look = next(good_trace())
    many = replace(facts, pcie_replays=10_000, nvlink_replays=10_000, nvlink_crc_errors=10**9)
    assert judge(many, look).findings == ()


def test_a_gpu_without_nvlink_among_its_like_may_still_be_used() -> None:
    facts, look = next(good_trace())
    verdict = judge(replace(facts, nvlinks_up=0), look)
    assert [(finding.code, finding.status) for finding in verdict.findings] == [("nvlink_down", "warn")]
    # Boards differ in how many links are wired.
    assert judge(replace(facts, nvlinks_up=12, nvlinks_up_of_peers=12), look).findings == ()
    assert judge(replace(facts, nvlinks_up=0, nvlinks_up_of_peers=None), look).findings == ()


def test_the_gravest_comes_first_and_gives_the_reason() -> None:
    facts, look = next(good_trace())
    verdict = judge(replace(facts, rows_pending=True, rows_failed=True, recovery_action=RECOVERY_ACTIONS[4]), look)
    # The driver's wish is explained by what was found.
    assert [finding.code for finding in verdict.findings] == ["rows_failed", "rows_pending"]
    assert verdict.reason == "a row of its memory could not be replaced"


def test_an_xid_is_told_once_with_number_and_last_time() -> None:
    facts, look = next(good_trace())
    logged = Xid(None, "0000:3b:00.0", 119, START, "Timeout after 45s of waiting", "kernel log")
    verdict = judge(facts, look, [replace(logged, time=START - 1), logged, replace(logged, time=START - 3)])
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(START))
    (finding,) = verdict.findings
    assert finding.message.startswith(f"XID 119, 3 times, last at {when}: ")


@pytest.mark.parametrize(
    ("origin", "code", "age_s", "action", "status"),
    [
        ("kernel log", 79, 60.0, "none", "warn"),
        # The driver does not say, says otherwise, was asked before, keeps no account of it; an event is of now.
        ("kernel log", 79, 60.0, None, "fail"),
        ("kernel log", 79, 60.0, "restart the machine", "fail"),
        ("kernel log", 79, -60.0, "none", "fail"),
        ("kernel log", 119, 60.0, "none", "fail"),
        ("event", 79, 60.0, "none", "fail"),
    ],
)
def test_a_logged_xid_is_over_where_the_driver_says_that_nothing_is_left_to_do(
    origin: Any, code: int, age_s: float, action: str | None, status: str
) -> None:
    (_, _), (facts, look) = list(good_trace())[:2]
    told = xid(code, origin=origin, age_s=age_s)
    assert judge(replace(facts, recovery_action=action), look, [told]).findings[0].status == status


def test_a_mig_instance_has_the_verdict_of_its_gpu() -> None:
    facts, look = next(good_trace())
    instance = GpuSample(replace(GPU, uuid="MIG-a", parent="GPU-a"), START)
    found = verdicts([replace(facts, rows_failed=True)], [look, instance])
    assert {uuid: (verdict.uuid, verdict.status) for uuid, verdict in found.items()} == {
        "GPU-a": ("GPU-a", "fail"),
        "MIG-a": ("MIG-a", "fail"),
    }


def test_a_whole_machine_is_judged_in_one_go() -> None:
    nvml = SimulatedNvml(
        [
            SimulatedGpu("GPU-a"),
            SimulatedGpu("GPU-b", ecc={(1, 0): 1, (1, 1): 1}),
            SimulatedGpu("GPU-c", pci="00000000:5B:00.0"),
            SimulatedGpu("GPU-d", instances={0: SimulatedInstance("MIG-d", 1)}, ecc={(1, 0): 1}),
        ]
    )
    log = [
        Xid(None, "0000:5b:00.0", 119, time.time() - 60, "Timeout after 45s of waiting", "kernel log"),
        Xid("GPU-a", None, 119, time.time() - XID_AGE_S - 60, "", "kernel log"),
    ]
    found = read_verdicts(nvml, log=lambda since: ([one for one in log if one.time >= since], None))
    assert {uuid: [finding.code for finding in verdict.findings] for uuid, verdict in found.items()} == {
        "GPU-a": [],
        "GPU-b": ["ecc_uncorrected"],
        "GPU-c": ["xid_119"],
        "GPU-d": ["ecc_uncorrected"],
        "MIG-d": ["ecc_uncorrected"],
    }
    assert nvml.initialised == 0


def test_a_gpu_that_is_lost_during_the_look_fails() -> None:
    nvml = SimulatedNvml(
        [SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b", errors={"nvmlDeviceGetRemappedRows": GPU_IS_LOST})]
    )
    found = read_verdicts(nvml)
    assert {uuid: verdict.status for uuid, verdict in found.items()} == {"GPU-a": "ok", "GPU-b": "fail"}
    assert [finding.code for finding in found["GPU-b"].findings] == ["lost"]


def test_without_driver_or_answer_there_is_no_verdict() -> None:
    assert read_verdicts(SimulatedNvml([], {"nvmlInit": DRIVER_NOT_LOADED})) == {}
    assert read_verdicts(SimulatedNvml([])) == {}
    hanging = SimulatedNvml([SimulatedGpu("GPU-a", hangs={"nvmlDeviceGetTotalEccErrors"})])
    assert read_verdicts(hanging, limit_s=0.05) == {}
    hanging.release()
