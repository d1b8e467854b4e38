from __future__ import annotations

import os

import pytest

from drumline.errors import HardwareError
from drumline.hardware.inventory import detect, matching, named_gpus, reading_of, visible_gpus
from drumline.hardware.nvml import Unavailable, read_gpus
from drumline.hardware.records import Gpu, GpuSample, Hardware, Snapshot
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedNvml,
)

A = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
B = "GPU-8a41c2d0-11aa-4b6e-9d53-0c4f6b1f2e77"
C = "GPU-0b7e55aa-5f0e-4a0c-8a2e-6d7f3a9b1c02"
THREE = [SimulatedGpu(A), SimulatedGpu(B), SimulatedGpu(C)]


def seen(text: str | None, gpus: list[SimulatedGpu] | None = None, **environ: str) -> tuple[list[str], str]:
    """UUIDs that CUDA would show under CUDA_VISIBLE_DEVICES=text, and the source."""
    if text is not None:
        environ["CUDA_VISIBLE_DEVICES"] = text
    found, source = visible_gpus(read_gpus(SimulatedNvml(THREE if gpus is None else gpus)), environ)
    return [gpu.uuid for gpu in found], source


# What CUDA did with each spelling was seen on an H100 under driver 580 (with one GPU, so without the orders).
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [A, B, C]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("-1,0", []),
        ("0", [A]),
        (" 2 , 0 ", [C, A]),
        ("2,1,0", [C, B, A]),
        ("0,2,-1,1", [A, C]),
        ("0,7,1", [A]),
        ("7,0", []),
        ("0,0", []),
        ("0,1,0", []),
        ("1gpu,+2", [B, C]),
        ("0x1", [A]),
        ("0,,1", [A]),
        (",0", []),
        ("0,", [A]),
        ("0;1", [A]),
        ("NoDevFiles", []),
        ("all", []),
        (A, [A]),
        (f"{C},{A}", [C, A]),
        ("GPU-89", [A]),
        ("GPU-8a,GPU-0", [B, C]),
        ("GPU-8", []),
        ("GPU-0,GPU-8,GPU-89", [C]),
        ("GPU-", []),
        ("GPU", []),
        (f"{A},{A}", []),
        (f"{A},GPU-89", []),
        (f"{A},GPU-ffffffff,{B}", [A]),
        (f"GPU-ffffffff,{A}", []),
        (f"{A},1", [A]),
        (f"1,{A}", [B]),
        (f"{A} ", [A]),
        (f"{A}x", [A]),
        (f" {A}", []),
        (f"{A}, {B}", [A]),
        ("GPU-" + A[4:].upper(), [A]),
        (A.lower(), []),
        (A[4:], []),
        (f"MIG-{A}", []),
        (f"MIG-{A}/0/0", []),
    ],
)
def test_each_spelling_shows_what_cuda_shows(text: str | None, expected: list[str]) -> None:
    assert seen(text)[0] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "CUDA_VISIBLE_DEVICES is empty"),
        ("-1", "ends before any GPU, at '-1'"),
        ("0,7", "ends after 1 GPUs, at '7'"),
        ("1,1", "names '1' twice"),
        ("1", "1 of 3 GPUs by CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_source_says_why_gpus_are_hidden(text: str, words: str) -> None:
    assert words in seen(text)[1]


def test_the_source_is_plain_where_nothing_is_hidden() -> None:
    assert seen(None)[1] == seen("0,1,2")[1] == "nvml 580.159.04"


def test_without_a_driver_the_variable_is_not_blamed() -> None:
    reading = read_gpus(SimulatedNvml([], {"nvmlInit": DRIVER_NOT_LOADED}))
    assert visible_gpus(reading, {"CUDA_VISIBLE_DEVICES": "0"}) == ((), "no NVIDIA driver is loaded")


def test_a_lost_gpu_is_named_in_the_source() -> None:
    uuids, source = seen(None, [SimulatedGpu(A), SimulatedGpu(B, errors={"nvmlDeviceGetUUID": GPU_IS_LOST})])
    assert uuids == [A]
    assert "GPU 1 left out: the GPU is lost" in source


UNLIKE = [SimulatedGpu(A, "NVIDIA T1000"), SimulatedGpu(B)]


@pytest.mark.parametrize(
    ("text", "order", "doubtful"),
    [
        (None, None, True),
        (None, "FASTEST_FIRST", True),
        ("1,0", None, True),
        (None, "PCI_BUS_ID", False),
        ("1,0", "PCI_BUS_ID", False),
        (f"{B},{A}", None, False),
    ],
)
def test_the_order_of_unlike_gpus_is_doubted_only_where_cuda_numbers_them(
    text: str | None, order: str | None, doubtful: bool
) -> None:
    uuids, source = seen(text, UNLIKE, **({"CUDA_DEVICE_ORDER": order} if order else {}))
    assert uuids == ([A, B] if text is None else [B, A])
    assert ("unlike GPUs" in source) is doubtful


def mig_machine() -> list[SimulatedGpu]:
    instances = {0: SimulatedInstance("MIG-11111111-aaaa", 7), 1: SimulatedInstance("MIG-22222222-bbbb", 9, 1)}
    return [SimulatedGpu(A), SimulatedGpu(B, instances=instances), SimulatedGpu(C, instances={})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["MIG-11111111-aaaa"]),
        ("0", [A]),
        ("0,2", [A]),
        ("0,1", ["MIG-11111111-aaaa"]),
        ("2", []),
        (B, ["MIG-11111111-aaaa"]),
        ("MIG-2", ["MIG-22222222-bbbb"]),
        ("MIG-22222222-bbbb,MIG-11111111-aaaa", ["MIG-22222222-bbbb"]),
        (f"MIG-{B}/9/1", ["MIG-22222222-bbbb"]),
        (f"MIG-{B}/9/0", []),
        ("MIG-3", []),
        ("MIG-2,MIG-2", []),
    ],
)
def test_a_process_sees_one_mig_instance_and_nothing_beside_it(text: str | None, expected: list[str]) -> None:
    assert seen(text, mig_machine())[0] == expected


def test_the_source_says_what_mig_leaves_out() -> None:
    source = seen(None, mig_machine())[1]
    assert "one MIG instance" in source
    assert "GPU 2 left out: MIG is on and it has no instance" in source


def test_detect_joins_gpus_and_host() -> None:
    hardware = detect({"CUDA_VISIBLE_DEVICES": "2"}, SimulatedNvml(THREE))
    assert [(gpu.uuid, gpu.index) for gpu in hardware.gpus] == [(C, 2)]
    assert 1 <= hardware.host.cpu_cores <= (os.cpu_count() or 1)
    assert hardware.host.memory_bytes > 0


def machine(text: str | None = None) -> Hardware:
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    return detect(environ, SimulatedNvml(THREE))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, [A, B, C]),
        (["2", "0"], [C, A]),
        ([B], [B]),
        (["GPU-8A", " GPU-0b7e "], [B, C]),
    ],
)
def test_names_are_indexes_and_uuids_in_the_recipes_order(names: list[str] | None, expected: list[str]) -> None:
    assert [gpu.uuid for gpu in named_gpus(machine(), names)] == expected


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["3"], "'3' in hardware.gpus is not a visible GPU"),
        (["-1"], "is not a visible GPU"),
        ([""], "is not a visible GPU"),
        (["GPU-"], "is not a visible GPU"),
        (["GPU-8"], "fits several visible GPUs"),
        (["GPU-ffff"], "is not a visible GPU"),
        (["0", A], "twice"),
        ([], "names no GPU"),
    ],
)
def test_names_of_what_is_not_there_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(HardwareError) as raised:
        named_gpus(machine(), names)
    assert words in raised.value.problem


def test_a_refusal_names_what_exists_and_why_the_rest_is_hidden() -> None:
    with pytest.raises(HardwareError) as raised:
        named_gpus(machine("1"), ["0"])
    assert f"1: {B} (NVIDIA H100 80GB HBM3)" in raised.value.fix
    assert A not in raised.value.fix
    assert "1 of 3 GPUs by CUDA_VISIBLE_DEVICES" in raised.value.problem


def test_excluded_gpus_are_left_alone_and_need_not_be_there() -> None:
    assert [gpu.uuid for gpu in named_gpus(machine(), None, ["1", "GPU-ffff", "7"])] == [A, C]
    assert [gpu.uuid for gpu in named_gpus(machine(), None, [B], 1)] == [A]
    with pytest.raises(HardwareError, match=r"names 2, and hardware.count asks for 1"):
        named_gpus(machine(), ["2", "0"], [], 1)
    with pytest.raises(HardwareError, match=r"and so does hardware.exclude"):
        named_gpus(machine(), ["1"], [B])
    with pytest.raises(HardwareError, match=r"'GPU-8' in hardware.exclude fits several GPUs"):
        named_gpus(machine(), None, ["GPU-8"])


def test_a_whole_gpu_stands_for_its_instances() -> None:
    gpus = [Gpu(A, "whole", 0, None, None), *(Gpu(f"MIG-{n}-x", "part", 0, None, None, parent=A) for n in "12")]
    assert matching(gpus, A, "x") == gpus
    assert matching(gpus, "0", "x") == gpus
    assert matching(gpus, "MIG-2", "x") == gpus[2:]


def other_source(*gpus: Gpu, problems: tuple[str, ...] = ()) -> Snapshot:
    return Snapshot(0.0, "nvidia-smi 580 (no NVML)", tuple(GpuSample(gpu, 0.0) for gpu in gpus), problems)


def test_gpus_of_another_source_are_shown_as_cuda_shows_them() -> None:
    """With MIG on, and one GPU that this source has left out."""
    whole, other = Gpu(A, "NVIDIA A100-SXM4-40GB", 0, 1, None), Gpu(B, "NVIDIA A100-SXM4-40GB", 1, 1, None)
    part = Gpu("MIG-1", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0, 1, None, parent=A)
    reading = reading_of(other_source(whole, part, other, problems=("GPU 2 left out: lost",)), Unavailable("no NVML"))
    assert reading.fault is None
    for text, uuids in ((None, ["MIG-1"]), ("1", [B]), ("MIG-1", ["MIG-1"]), (B, [B])):
        gpus, source = visible_gpus(reading, {} if text is None else {"CUDA_VISIBLE_DEVICES": text})
        assert [gpu.uuid for gpu in gpus] == uuids
        assert source.startswith("nvidia-smi 580 (no NVML); GPU 2 left out: lost")


def test_an_instance_whose_gpu_a_source_does_not_know_is_a_gpu_to_it() -> None:
    part = Gpu("MIG-1", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0, 1, None, parent=A)
    assert [device.gpu for device in reading_of(other_source(part)).devices] == [part]


def test_the_fault_stays_where_no_source_has_gpus() -> None:
    fault = Unavailable("no NVIDIA driver is loaded", DRIVER_NOT_LOADED)
    reading = reading_of(other_source(), fault)
    assert (reading.devices, reading.fault) == ((), fault)
