from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.errors import HardwareError
from drumline.hardware import claims
from drumline.hardware.health import Finding, Verdict
from drumline.hardware.occupants import GIB
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Snapshot
from drumline.hardware.selection import Selection, Wish, choose, require, select, select_optimal_gpus, sickness
from drumline.hardware.topology import Link, Topology
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess

GPUS = [Gpu(f"GPU-{letter}", "NVIDIA H100", index, 80 * GIB, (9, 0)) for index, letter in enumerate("abcd")]
A, B, C, D = (gpu.uuid for gpu in GPUS)
STRANGER = GpuProcess(4242, "compute", 3 * GIB, "python train.py", "anna")
OURS = replace(STRANGER, ours=True)


def free(gpu: Gpu, **facts: object) -> GpuSample:
    """A GPU that nobody uses, but for these facts."""
    known: dict[str, object] = {
        "utilization": 0.0,
        "memory_used_bytes": GIB // 2,
        "memory_free_bytes": 79 * GIB,
        "processes": (),
    }
    return GpuSample(gpu, 0.0, **{**known, **facts})  # type: ignore[arg-type]


def seen(**changed: GpuSample) -> Snapshot:
    """Four GPUs, those given by the last letter of their UUID as given."""
    samples = {gpu.uuid[-1]: free(gpu) for gpu in GPUS} | changed
    return Snapshot(0.0, "nvml", tuple(samples.values()))


def chosen(snapshot: Snapshot, wish: Wish | None = None, claimed: dict[str, str] | None = None) -> Selection:
    return choose(snapshot, {}, None, claimed or {}, wish or Wish())


def verdict(uuid: str, status: str, *messages: str) -> Verdict:
    findings = tuple(Finding("x", status, message, "reset it", "NVIDIA") for message in messages)  # type: ignore[arg-type]
    return Verdict(uuid, status, findings)  # type: ignore[arg-type]


def test_all_that_are_healthy_and_free_are_taken() -> None:
    assert chosen(seen()) == Selection((A, B, C, D), {})


def test_a_sick_gpu_is_left_out_with_what_is_wrong_and_a_doubtful_one_is_not() -> None:
    verdicts = {A: verdict(A, "fail", "XID 79: it fell off the bus"), B: verdict(B, "warn", "it is warm")}
    found = choose(seen(), verdicts, None, {}, Wish())
    assert found == Selection((B, C, D), {A: "sick: XID 79: it fell off the bus"})
    assert choose(seen(), verdicts, None, {}, Wish(sick="use")).uuids == (A, B, C, D)


def test_a_mig_instance_is_as_sick_as_its_gpu() -> None:
    part = Gpu("MIG-1", "part", 0, 5 * GIB, None, parent=A)
    assert sickness(part, {A: verdict(A, "fail", "rows failed")}) == "sick: rows failed"
    assert sickness(part, {A: verdict(A, "warn", "x")}) is None


def test_a_strangers_process_keeps_its_gpu_out_by_pid_name_and_owner() -> None:
    found = chosen(seen(b=free(GPUS[1], processes=(STRANGER,))))
    reason = "taken: process 4242 (python train.py) of anna computes on it and holds 3.0 GiB"
    assert found == Selection((A, C, D), {B: reason})
    assert chosen(seen(b=free(GPUS[1], processes=(STRANGER,))), Wish(taken="use")).left_out == {}


def test_what_another_launch_has_claimed_is_left_to_it() -> None:
    claimed = {A: "claimed by process 7 of anna for runs/x"}
    assert chosen(seen(), claimed=claimed) == Selection((B, C, D), claimed)
    assert chosen(seen(), Wish(taken="use"), claimed).uuids == (A, B, C, D)


def test_excluded_gpus_are_named_by_index_or_uuid() -> None:
    found = chosen(seen(), Wish(exclude=("1", "GPU-d", "9")))
    assert found == Selection((A, C), {B: "hardware.exclude names it", D: "hardware.exclude names it"})


def test_named_gpus_come_in_their_own_order() -> None:
    found = chosen(seen(), Wish(names=(C, A)))
    assert found.uuids == (C, A)
    assert set(found.left_out) == {B, D}


@pytest.mark.parametrize(
    ("facts", "wish", "words"),
    [
        ({"memory_free_bytes": 20 * GIB}, Wish(min_free_memory=0.5), "25% of its memory is free"),
        ({"memory_free_bytes": None}, Wish(min_free_memory=0.5), "not known: no permission"),
        ({"memory_free_bytes": 20 * GIB}, Wish(min_free_bytes=30 * GIB), "20.0 GiB of its memory are free, and 30.0"),
        ({"utilization": 0.4}, Wish(max_utilization=0.1), "it is 40% at work, and hardware.max_utilization is 10%"),
        ({"utilization": None}, Wish(max_utilization=0.1), "how busy it is is not known: no permission"),
    ],
)
def test_a_gpu_that_is_full_or_busy_or_does_not_say(facts: dict[str, object], wish: Wish, words: str) -> None:
    refused = {"memory_free_bytes": "no permission", "utilization": "no permission"}
    found = chosen(seen(a=free(GPUS[0], refused=refused, **facts)), wish)
    assert found.uuids == (B, C, D)
    assert words in found.left_out[A]
    assert chosen(seen(a=free(GPUS[0], refused=refused, **facts))).uuids == (A, B, C, D)


def test_of_more_than_are_asked_for_the_best_connected_are_taken() -> None:
    links = (Link(A, B, level=50), Link(A, C, level=50), Link(A, D, level=50), Link(B, C, level=50))
    topology = Topology(links=(*links, Link(B, D, nvlinks=18), Link(C, D, level=50)))
    found = choose(seen(), {}, topology, {}, Wish(count=2))
    assert found.uuids == (B, D)
    assert found.left_out == {A: "not needed: 2 were asked for", C: "not needed: 2 were asked for"}
    assert choose(seen(), {}, topology, {}, Wish(count=2, prefer_topology=False)).uuids == (A, B)
    assert choose(seen(), {}, None, {}, Wish(count=2)).uuids == (A, B)
    # Only among those that are usable.
    assert choose(seen(), {}, topology, {D: "claimed"}, Wish(count=2)).uuids == (A, B)


LABELS = {gpu.uuid: f"GPU {gpu.index}" for gpu in GPUS}


def test_too_few_gpus_are_refused_with_every_reason() -> None:
    wish = Wish(count=3)
    left_out = {A: "sick: rows failed", C: "taken: process 7 computes on it"}
    with pytest.raises(HardwareError) as raised:
        require(Selection((B, D), left_out), wish, LABELS)
    problem, fix = raised.value.problem, raised.value.fix
    assert problem.startswith("3 GPUs are asked for, and 2 of 4 can be used: GPU 0: sick: rows failed; GPU 2: taken:")
    assert "hardware.sick=use" in fix and "hardware.taken=use" in fix and "hardware.count" in fix
    require(Selection((B, D), left_out), Wish(), LABELS)
    with pytest.raises(HardwareError, match="a GPU is asked for, and none of 4 can be used"):
        require(Selection((), left_out), Wish(), LABELS)


def test_a_named_gpu_that_is_not_to_be_used_is_refused_with_the_setting_that_allows_it() -> None:
    wish = Wish(names=(A, C))
    found = choose(seen(a=free(GPUS[0], processes=(STRANGER,))), {}, None, {}, wish)
    with pytest.raises(
        HardwareError, match=r"hardware.gpus names what is not to be used: GPU 0: taken: .* 4242"
    ) as raised:
        require(found, wish, LABELS)
    assert "hardware.taken=use" in raised.value.fix and "hardware.sick" not in raised.value.fix
    assert "GPU 1" not in raised.value.problem


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedNvml:
    """Four simulated GPUs as the machine's, shown to this process as 3, 1, 0; nobody has claimed any."""
    simulated = SimulatedNvml([SimulatedGpu(f"{gpu.uuid}0000000") for gpu in GPUS])
    monkeypatch.setitem(sys.modules, "pynvml", simulated)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0")
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    return simulated


def test_select_looks_at_what_this_process_may_use(nvml: SimulatedNvml) -> None:
    a, b, c, d = (gpu.uuid for gpu in nvml.gpus)
    assert select() == Selection((d, b, a), {})
    nvml.gpus[1].processes.append(SimulatedProcess(999_999, GIB))
    found = select(2)
    assert found.uuids == (d, a) and list(found.left_out) == [b]
    assert select(3, taken="use").uuids == (d, b, a)
    with pytest.raises(HardwareError, match=r"3 GPUs are asked for, and 2 of 3 can be used: GPU 1 \(GPU-b"):
        select(3)
    with claims.Claims("runs/x") as other:
        other.take([d])
        assert "claimed by process" in select(1).left_out[d]
    assert c not in select().left_out


def test_optimal_gpus_are_cudas_indexes_of_those_with_the_memory(
    nvml: SimulatedNvml, caplog: pytest.LogCaptureFixture
) -> None:
    assert select_optimal_gpus() == [0, 1, 2]
    assert select_optimal_gpus(num_gpus=1, min_memory_gb=8.0) == [0]
    nvml.gpus[3].memory_used_bytes = 75 * GIB
    assert select_optimal_gpus(num_gpus=2, min_memory_gb=8.0) == [1, 2]
    assert caplog.messages == []
    assert select_optimal_gpus(num_gpus=3, min_memory_gb=8.0) == [1, 2]
    [message] = caplog.messages
    assert message.startswith("2 of 3 GPUs can be used: GPU 3 (GPU-d0000000): taken: 75.0 GiB of it are in use")


def test_without_a_gpu_there_is_nothing_to_choose(nvml: SimulatedNvml) -> None:
    nvml.gpus.clear()
    assert select_optimal_gpus(num_gpus=4) == []
    with pytest.raises(HardwareError, match=r"no GPU is visible .*no GPU"):
        select()
