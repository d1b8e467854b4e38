from __future__ import annotations

from functools import reduce

import pytest

from drumline.hardware.health import Verdict
from drumline.hardware.records import Gpu
from drumline.monitor.scene import SORTS, VIEWS, ViewState, labels, ordered, press, selected
from tests.unit.monitor.scenes import SICK, sample, scene

THREE = scene(
    sample(0, utilization=0.2, power_w=600.0, temperature_c=None),
    sample(1, utilization=0.9, power_w=300.0, temperature_c=70.0),
    sample(2, utilization=0.5, power_w=300.0, temperature_c=60.0),
    verdicts={"GPU-0000": Verdict("GPU-0000", "ok"), "GPU-0001": SICK},
)


def pressed(*keys: str) -> ViewState:
    return reduce(lambda state, key: press(state, key, THREE), keys, ViewState())


@pytest.mark.parametrize(
    ("sort", "reverse", "expected"),
    [
        ("index", False, [0, 1, 2]),
        ("index", True, [2, 1, 0]),
        ("use", False, [1, 2, 0]),
        ("use", True, [0, 2, 1]),
        ("power", False, [0, 1, 2]),
        ("temperature", False, [1, 2, 0]),
        ("health", False, [1, 0, 2]),
    ],
)
def test_the_most_comes_first_and_equals_stay(sort: str, reverse: bool, expected: list[int]) -> None:
    state = ViewState(sort=sort, reverse=reverse)
    assert [each.gpu.index for each in ordered(THREE, state)] == expected


def test_every_sort_has_an_order() -> None:
    assert all(len(ordered(THREE, ViewState(sort=sort))) == 3 for sort in SORTS)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["q"], ViewState(done=True)),
        (["3"], ViewState(view="processes")),
        (["tab", "tab"], ViewState(view="processes", selected="GPU-0000")),
        (["2"], ViewState(view="gpu", selected="GPU-0000")),
        (["s", "enter", "r"], ViewState(view="gpu", sort="use", reverse=True, selected="GPU-0001")),
        (["left"], ViewState(view=VIEWS[-1])),
        (["9", "0", "x", "escape"], ViewState()),
        (["s"], ViewState(sort="use")),
        (["s", "r"], ViewState(sort="use", reverse=True)),
        (["s", "r", "s"], ViewState(sort="memory")),
        (["p", "space", "p"], ViewState(paused=True)),
        (["?", "q"], ViewState()),
        (["down", "j", "down", "down"], ViewState(selected="GPU-0002")),
        (["down", "up", "k"], ViewState(selected="GPU-0000")),
        (["down", "enter"], ViewState(selected="GPU-0001", view="gpu")),
        (["down", "s", "up"], ViewState(selected="GPU-0001", sort="use")),  # the first by use is GPU 1 itself
    ],
)
def test_keys_change_what_is_shown(keys: list[str], expected: ViewState) -> None:
    assert pressed(*keys) == expected


def test_a_chosen_gpu_that_is_gone_is_the_first() -> None:
    chosen = selected(THREE, ViewState(selected="GPU-9999"))
    assert chosen is not None and chosen.gpu.index == 0
    assert selected(scene(snapshot=THREE.snapshot.__class__(0.0, "nothing")), ViewState()) is None


def test_parts_of_a_gpu_are_numbered_behind_it() -> None:
    def part(uuid: str, index: int) -> Gpu:
        return Gpu(uuid, "NVIDIA A100 MIG 1g.5gb", index, 5 << 30, (8, 0), None, f"GPU-{index:04}")

    samples = [sample(0), sample(1), *(sample(gpu=part(f"MIG-{place}", 1)) for place in "ab")]
    assert labels(samples) == {"GPU-0000": "0", "GPU-0001": "1", "MIG-a": "1:0", "MIG-b": "1:1"}
