"""How a machine's GPUs are used best: by health, by the rule that chooses a kind, by memory."""

from __future__ import annotations

from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import Gpu, Host
from drumline.jobs.records import Device, Inventory
from drumline.service.recommendations import Recommendation, recommend

GIB = 1 << 30
HOST = Host(8, 64 * GIB, "here")


def gpus(count: int, name: str = "NVIDIA H100", capability: tuple[int, int] = (9, 0)) -> list[Gpu]:
    return [Gpu(f"GPU-{index}", name, index, 80 * GIB, capability) for index in range(count)]


def found(these: list[Gpu], verdicts: dict[str, Verdict] | None = None, **unusable: str) -> Recommendation:
    devices = tuple(Device(gpu.uuid, unusable=unusable.get(gpu.uuid.replace("-", "_"))) for gpu in these)
    inventory = Inventory("here", 1.0, devices, has_gpus=bool(these))
    return recommend(these, verdicts or {}, inventory, host=HOST, source="nvml 580")


def test_several_gpus_are_a_process_each() -> None:
    told = found(gpus(4))
    assert (told.method, told.config) == (
        "distributed",
        {"use_multi_gpu": True, "backend": "nccl", "mixed_precision": True},
    )
    assert set(told.reasons) == {"method", *told.config}


def test_one_gpu_has_nobody_to_share_with() -> None:
    told = found(gpus(1))
    assert (told.method, told.config["use_multi_gpu"]) == ("auto", False)


def test_no_gpu_says_why() -> None:
    told = found([])
    assert told.config == {"use_multi_gpu": False, "backend": "gloo", "mixed_precision": False}
    assert told.reasons["use_multi_gpu"] == "there is no GPU: nvml 580"
    assert told.advice == ()


def test_unusable_ones_are_left_out_by_number_with_the_reason() -> None:
    sick = Verdict("GPU-1", "fail", (Finding("rows_failed", "fail", "a row failed", "replace it", "NVIDIA"),))
    told = found(gpus(3), {"GPU-1": sick}, GPU_1="sick: a row failed", GPU_2="taken by somebody")
    assert (told.config["gpu_ids"], told.config["use_multi_gpu"], told.method) == ([0], False, "auto")
    assert "GPU 1: sick: a row failed" in told.reasons["gpu_ids"]
    assert [(each.subject, each.level, each.message) for each in told.advice[:2]] == [
        ("GPU-1", "fail", "a row failed"),
        ("GPU-2", "warn", "taken by somebody"),
    ]


def test_older_gpus_get_half_precision_too_and_unlike_ones_a_warning() -> None:
    told = found([*gpus(1), Gpu("GPU-9", "Tesla T4", 9, 16 * GIB, (7, 5))])
    assert told.config["mixed_precision"] is True
    assert "compute capability 7.5" in told.reasons["mixed_precision"]
    assert any("different kinds" in each.message for each in told.advice)


def test_how_large_a_model_may_be_follows_from_the_smallest_memory() -> None:
    large, small = (
        next(each.message for each in found(these).advice if "billion" in each.message)
        for these in (gpus(2), [*gpus(1), Gpu("GPU-9", "NVIDIA H100", 9, 16 * GIB, (9, 0))])
    )
    # 0.9 of 80 GiB, less a tenth: 64.8 GiB, half of it at 18 bytes; of 16 GiB 12.6 (2 are left out).
    assert "about 1.9 billion" in large
    assert "about 0.38 billion" in small
