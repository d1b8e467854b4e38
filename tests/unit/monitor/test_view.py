from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from drumline.hardware.health import Verdict
from drumline.hardware.records import Gpu, Snapshot
from drumline.monitor.scene import VIEWS, Look, Scene, ViewState
from drumline.monitor.view import plain_lines, screen
from tests.unit.monitor.scenes import ALERT, NOW, PENDING, RUN, SICK, drawn, sample, scene

HOT = sample(1, temperature_c=85.0, throttled_by=("heat (hardware)",), processes=(), pcie_width=8)
BUSY = scene(
    sample(0),
    HOT,
    *(sample(index) for index in range(2, 8)),
    verdicts={"GPU-0000": Verdict("GPU-0000", "ok"), "GPU-0001": SICK},
    runs=[RUN],
    alerts=[PENDING, ALERT],
    price_per_hour=24.3,
)
NO_GPU = scene(snapshot=Snapshot(NOW, "no NVIDIA driver (libnvidia-ml is not installed)", no_gpu=True), runs=[RUN])
SIZES = [(60, 24), (80, 24), (120, 30), (200, 50), (40, 10), (20, 3), (1, 1)]


def lines_of(shown: Scene, state: ViewState, width: int, height: int | None, ascii_only: bool = False) -> list[str]:
    return drawn(screen(shown, state, Look(width, height, ascii_only)), width).split("\n")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("shown", [BUSY, NO_GPU, scene(sample(0, pipes=None, processes=None))])
def test_every_view_fits_every_terminal(shown: Scene, view: str, width: int, height: int) -> None:
    lines = lines_of(shown, ViewState(view=view), width, height)
    assert all(cell_len(line) <= width for line in lines)
    if height > 10:
        assert len(lines) == height
        assert lines[-1].startswith("q quit  ? help ")


def test_at_60_columns_use_memory_power_heat_and_health_stay() -> None:
    lines = lines_of(BUSY, ViewState(), 60, 24)
    assert lines[0].startswith("node7") and "8 x H100 80GB HBM3" in lines[0]
    assert lines[1].split() == ["GPU", "use", "memory", "GiB", "power", "heat", "health"]
    assert lines[2].split() == [">0", "███████▍", "92%", "████▋·", "61.0/80.0", "612/700", "W", "61", "C", "ok"]
    assert "[1 overview]" in lines[-1]


def test_with_room_there_is_all_of_it() -> None:
    lines = lines_of(BUSY, ViewState(), 220, 40)
    for title in ("SM", "tensor", "last 2 min", "clock", "PCIe", "NVLink", "who"):
        assert title in lines[1]
    assert "name" not in lines[1]  # it stands in the headline
    assert "88%" in lines[2] and "41%" in lines[2]
    assert "python 4711 alice (ours)" in lines[2] and "5 x16" in lines[2] and "GB/s" in lines[2]
    assert "nobody" in lines[3] and "5 x8!" in lines[3]


def test_unlike_gpus_have_their_names() -> None:
    other = replace(sample(1).gpu, name="NVIDIA GeForce RTX 4090")
    lines = lines_of(scene(sample(0), sample(gpu=other)), ViewState(), 120, 24)
    assert "2 GPUs" in lines[0] and "H100 80GB HBM3" in lines[2] and "RTX 4090" in lines[3]


def test_what_nobody_gives_takes_no_room() -> None:
    bare = scene(sample(0, pipes=None, power_w=None, pcie_width=None), series=lambda uuid, name: ())
    titles = lines_of(bare, ViewState(), 220, 40)[1]
    assert not any(title in titles for title in ("SM", "tensor", "last 2 min", "PCIe", "NVLink", "power"))


def test_trouble_stands_in_words_not_in_colours_alone() -> None:
    text = "\n".join(lines_of(BUSY, ViewState(), 100, 40))
    assert "85 C!" in text and "fail" in text
    assert "GPU 1 fail: 2 uncorrectable errors of memory; reset the GPU" in text
    assert "warning firing 1:31 GPU 1: throttled is 0.9; look at cooling" in text
    assert text.index("warning firing") < text.index("info pending")
    assert re.search(r"small +running +120 of 400 +2.312", text)


def test_with_colours_it_says_the_same() -> None:
    colourful = drawn(screen(BUSY, ViewState(), Look(100, 40)), 100, color=True)
    assert "\x1b[" in colourful
    assert re.sub(r"\x1b\[[0-9;]*m", "", colourful) == "\n".join(lines_of(BUSY, ViewState(), 100, 40))


@pytest.mark.parametrize("view", VIEWS)
def test_a_terminal_without_unicode_gets_ascii(view: str) -> None:
    assert "\n".join(lines_of(BUSY, ViewState(view=view), 200, None, ascii_only=True)).isascii()


def test_the_order_is_told_and_the_chosen_one_marked() -> None:
    state = ViewState(sort="temperature", selected="GPU-0003")
    lines = lines_of(BUSY, state, 100, 40)
    assert "HEAT" in lines[1] and lines[2].startswith(" 1")
    assert [line[:2] for line in lines if line.startswith(">")] == [">3"]
    assert "by temperature" in lines[-1]


def test_on_a_low_terminal_the_chosen_one_is_among_the_lines_shown() -> None:
    lines = lines_of(BUSY, ViewState(selected="GPU-0007"), 80, 7)
    assert len(lines) == 7 and any(line.startswith(">7") for line in lines)


def test_one_gpu_is_shown_with_curves_links_and_findings() -> None:
    shown = replace(BUSY, snapshot=replace(BUSY.snapshot, gpus=(sample(0), HOT)))
    text = "\n".join(lines_of(shown, ViewState(view="gpu", selected="GPU-0001"), 100, 60))
    for words in (
        "GPU 1  NVIDIA H100 80GB HBM3  GPU-0001  0000:01:00.0",
        "use 98%, of 100%, last 5:00",
        "power 688 W, of 700 W",
        "SM clock 1755 of 1980 MHz, slowed down by heat (hardware)",
        "PCIe 5 x8, of 5 x16, NVLink out 8.8 GB/s",
        "fail: 2 uncorrectable errors of memory; reset the GPU (a guide)",
    ):
        assert words in text


@pytest.mark.parametrize("view", ["overview", "processes"])
def test_memory_in_use_by_nobody_who_is_seen_is_told(view: str) -> None:
    part = Gpu("MIG-a", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, 10 << 30, (9, 0), None, "GPU-0001")
    instance = sample(gpu=part, memory_used_bytes=1 << 20, processes=())
    shown = scene(sample(0, processes=()), sample(1, processes=()), instance, sample(2))
    told = [line for line in lines_of(shown, ViewState(view=view), 120, 40) if "taken" in line]
    assert told == ["GPU 0 taken: 61.0 GiB of it are in use, by nobody who can be seen here (another container?)"]


def test_refused_values_are_told_with_their_reason() -> None:
    refusing = scene(sample(0, power_w=None, refused={"power_w": "not supported"}))
    assert "power_w: not supported" in "\n".join(lines_of(refusing, ViewState(view="gpu"), 80, 40))


def test_no_gpu_is_one_line_and_runs_are_shown() -> None:
    lines = lines_of(NO_GPU, ViewState(), 100, 24)
    assert lines[1] == "no GPU: no NVIDIA driver (libnvidia-ml is not installed)"
    assert any(line.startswith("small  running") for line in lines)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stuck": "the driver has not answered for 12 s", "now": NOW + 13}, "for 12 s; these values are 13 s old"),
        ({"now": NOW + 70}, "these values are 1:10 old"),
        ({"note": "warning: the webhook did not answer"}, "warning: the webhook did not answer"),
        (
            {"snapshot": Snapshot(NOW, "nvml 580.159", (sample(0),), ("GPU 1 left out: lost",))},
            "GPU 1 left out: lost",
        ),
        (
            {"snapshot": Snapshot(NOW, "the driver did not answer within 5 s")},
            "GPUs cannot be read: the driver did not",
        ),
    ],
)
def test_what_is_wrong_stands_above_everything(fields: dict[str, object], expected: str) -> None:
    assert expected in "\n".join(lines_of(replace(BUSY, **fields), ViewState(), 100, 24)[:3])  # type: ignore[arg-type]


def test_the_help_names_the_keys() -> None:
    text = "\n".join(lines_of(BUSY, ViewState(help=True), 80, 24))
    assert "q             leave" in text and "order: index, use, memory, power, temperature, health" in text


def test_a_run_has_more_columns_where_there_is_room() -> None:
    tables = [lines_of(BUSY, ViewState(view="runs"), width, 24)[1:3] for width in (80, 110, 150)]
    counts = [len(re.split("  +", titles.strip())) for titles, _ in tables]
    assert counts == [6, 9, 12]
    assert "51,234 tokens/s" in tables[1][1] and "1.25" in tables[1][1]
    assert "eval loss" in tables[2][0] and tables[2][1].rstrip().endswith("none")


def test_held_still_it_says_so() -> None:
    assert lines_of(BUSY, ViewState(paused=True), 80, 24)[0].startswith("PAUSED")


def test_lines_for_a_log_hold_the_same_facts() -> None:
    lines = list(plain_lines(replace(BUSY, snapshot=replace(BUSY.snapshot, gpus=(sample(0), HOT)))))
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert all(re.match(stamp, line) for line in lines)
    assert [re.sub(stamp, "", line) for line in lines] == [
        "GPU 0 use 92%, SM 88%, tensor 41%, memory 61.0/80.0 GiB, power 612/700 W, at 61 C, health ok",
        "GPU 1 use 92%, SM 88%, tensor 41%, memory 61.0/80.0 GiB, power 612/700 W, at 85 C, health fail",
        "GPU 1 fail: 2 uncorrectable errors of memory; reset the GPU",
        "run small: running, update 120 of 400, loss 2.312, 51,234 tokens/s, last line 3 s ago, 3:10 left, cost 1.25",
        "alert warning firing 1:31 GPU 1: throttled is 0.9; look at cooling",
        "alert info pending 10 s GPU 0: use is 0.05",
    ]


def test_in_a_log_the_missing_gpu_is_told_once() -> None:
    first, again = list(plain_lines(NO_GPU)), list(plain_lines(NO_GPU, again=True))
    assert len(first) == 2 and "no GPU: no NVIDIA driver" in first[0]
    assert again == first[1:]


def test_a_part_of_a_gpu_is_no_gpu_more_for_the_power() -> None:
    part = Gpu("MIG-a", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0, 10 << 30, (9, 0), None, "GPU-0000")
    lines = lines_of(scene(sample(0), sample(gpu=part, power_w=612.0)), ViewState(), 100, 24)
    assert "612 W" in lines[0] and "1,224 W" not in lines[0]
    assert lines[3].startswith(" 0:0")
