from __future__ import annotations

import pytest

from drumline.errors import HardwareError
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.launcher.world import World
from drumline.parallel.groups import bind_devices, own_positions
from drumline.parallel.positions import positions_of

A, B, C = "GPU-a", "GPU-b", "GPU-c"


def machine(*names: str) -> Hardware:
    gpus = (
        Gpu(uuid, name, 7 - place, 1, None) for place, (uuid, name) in enumerate(zip((A, B, C), names, strict=True))
    )
    return Hardware(tuple(gpus), Host(1, 1, "box"), "nvml")


def nobody() -> list[str]:
    raise AssertionError("CUDA is not to be started for this")


def test_a_named_gpu_is_where_cuda_shows_it_and_not_cuda_0() -> None:
    assert positions_of([C], machine("H100", "H100", "H100"), nobody) == (2,)
    assert positions_of([C, A], machine("H100", "H100", "H100"), nobody) == (2, 0)


def test_cuda_itself_is_asked_for_the_order_of_unlike_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    unlike = machine("T4", "H100", "T4")
    assert positions_of([A, B], unlike, lambda: [B, A, C]) == (1, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{A},{B},{C}")  # an order that was given
    assert positions_of([A, B], unlike, nobody) == (0, 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert positions_of([A, B], unlike, nobody) == (0, 1)


def test_a_gpu_that_cuda_does_not_show_is_named() -> None:
    with pytest.raises(HardwareError, match="CUDA shows GPU-a, GPU-b, GPU-c, and this process is to use GPU-d"):
        positions_of(["GPU-d"], machine("H100", "H100", "H100"), nobody)


@pytest.mark.parametrize(
    ("world", "positions", "num_shards", "expected"),
    [
        (World(), (2,), 1, (2,)),
        (World(), (2, 0), 2, (2, 0)),
        (World(1, 2, 1, 2), (3, 1), 1, (1,)),
        (World(5, 8, 5, 8), (0,), 1, (0,)),  # SLURM's --gpus-per-task
    ],
)
def test_each_process_has_its_place(
    world: World, positions: tuple[int, ...], num_shards: int, expected: tuple[int, ...]
) -> None:
    assert own_positions(world, positions, num_shards) == expected


def test_on_the_cpu_every_shard_has_the_cpu() -> None:
    assert [device.type for device in bind_devices(World(), None, 3)] == ["cpu"] * 3


def test_fewer_gpus_than_the_plan_counts_on_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(HardwareError, match="is to use GPU 2 of those that CUDA shows, and it shows 1"):
        bind_devices(World(), (2,))
