"""The report's plots: what is drawn, and that odd values do not stop them."""

from __future__ import annotations

import builtins
import math
import struct
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from drumline.errors import MissingExtra
from drumline.track.figures import PAGE_COLOURS, Plot, smooth, thin
from drumline.track.plots import PLOT_NAMES, draw_plots

Record = dict[str, Any]


def train_records(num: int = 60) -> list[Record]:
    rest = {"lr": 1e-3, "units_per_s": 32000.0, "unit": "tokens", "memory_peak_bytes": [6e8, 7e8]}
    return [{"step": 10 * k, "loss": 2 + 3 / k, **rest} for k in range(1, num + 1)]


def eval_records() -> list[Record]:
    return [{"kind": "eval", "step": 100 * k, "loss": 3.0 / k, "accuracy": 0.1 * k, "count": 9} for k in range(1, 7)]


@pytest.fixture(scope="module")
def plots() -> list[Plot]:
    """Drawn once: it is drawing that takes time."""
    return draw_plots(train_records(), eval_records(), "cuda")


def words(plot: Plot) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(plot.svg).iter() if node.tag.endswith("text")]


def pixels(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_five_plots_with_titles_units_and_legend(plots: list[Plot]) -> None:
    assert tuple(plot.name for plot in plots) == PLOT_NAMES
    for plot in plots:
        width, height = pixels(plot.png)
        assert width >= 800
        assert height >= 450
        assert len(plot.png) > 10_000
        assert plot.title in words(plot)
        assert "completed updates" in words(plot)
    loss, evaluation, rate, speed, memory = map(words, plots)
    assert {"training", "training, average of 5 log lines", "evaluation", "loss"} <= set(loss)
    assert {"evaluation loss", "accuracy", "best 0.5"} <= set(evaluation)
    assert "learning rate" in rate
    assert {"tokens per second", "30,000"} <= set(speed)
    assert {"GPU memory (GiB)", "peak, highest of 2 ranks"} <= set(memory)


def test_the_svg_takes_its_colours_from_the_page_and_its_ids_are_its_own(plots: list[Plot]) -> None:
    ids = [
        node.attrib["id"] for plot in plots for node in ElementTree.fromstring(plot.svg).iter() if "id" in node.attrib
    ]
    assert len(ids) == len(set(ids))
    for plot in plots:
        assert "http" not in plot.svg
        assert not any(colour in plot.svg for colour in PAGE_COLOURS)
        used = {node.attrib["href"][1:] for node in ElementTree.fromstring(plot.svg).iter() if "href" in node.attrib}
        assert used <= set(ids)
        assert used


def test_drawing_again_gives_the_same_bytes(plots: list[Plot]) -> None:
    assert draw_plots(train_records(), eval_records(), "cuda") == plots


@pytest.mark.parametrize(
    ("train", "evals", "text"),
    [
        ([], [], "nothing was recorded"),
        (
            [{"step": 1, "loss": math.nan, "lr": math.inf}],
            [{"step": 1, "loss": math.nan}],
            "no finite value was recorded",
        ),
    ],
)
def test_without_values_the_plot_says_so(train: list[Record], evals: list[Record], text: str) -> None:
    loss, evaluation, rate, *_ = draw_plots(train, evals, "unknown")
    assert all(text in words(plot) for plot in (loss, evaluation, rate))


def test_odd_records_are_drawn_as_far_as_they_go() -> None:
    train = train_records(12)
    train[3]["loss"] = math.nan
    train[4]["loss"] = 3.4e38
    train[5] = {"step": None, "loss": "high", "units_per_s": True}
    evals = [{"step": 0, "loss": 3.0, "a $x^$ <b> metric" + "y" * 200: 1.0, "label": "text"}]
    plots = draw_plots(train, evals, "cpu")
    assert "a $x^$ <b> metric" + "y" * 22 + "…" in words(plots[1])
    assert "label" not in words(plots[1])


def test_memory_is_drawn_by_kind_with_the_highest_rank_on_top() -> None:
    kinds = {"memory_reserved_bytes": [9e9, 8e9], "memory_allocated_bytes": [1e9, None], "memory_resident_bytes": 5e9}
    train = [{"step": step, "loss": 1.0, **kinds} for step in (1, 2, 3)]
    memory = words(draw_plots(train, [], "cuda")[-1])
    assert {"reserved, highest of 2 ranks", "allocated, highest of 2 ranks"} <= set(memory)
    assert not any(word.startswith(("peak", "resident")) for word in memory)  # the latter is no list by rank
    alone = words(draw_plots([{"step": 1, "memory_resident_bytes": [6e8]}], [], "cpu")[-1])
    assert {"resident", "memory of a process (GiB)"} <= set(alone)


def test_learners_have_a_curve_each_in_the_loss_plot() -> None:
    train = [{"step": step, "loss": 2.0, "critic/loss": 1.5, "_$m$/loss": 0.5} for step in (1, 2)]
    loss = words(draw_plots(train, [], "cpu")[0])
    assert {"training", "training, critic", "training, _$m$"} <= set(loss)


def test_of_many_metrics_the_first_have_a_panel() -> None:
    evals = [{"kind": "eval", "step": 1, "loss": 1.0, **{f"metric_{k}": 1.0 for k in range(50)}}]
    evaluation = words(draw_plots([], evals, "cpu")[1])
    assert {"evaluation loss", "metric_0", "metric_2"} <= set(evaluation)
    assert "metric_3" not in evaluation


def test_samples_are_the_unit_where_there_is_no_other() -> None:
    plots = draw_plots([{"step": 1, "samples_per_s": 3.0, "unit": "tokens"}], [], "cpu")
    assert "samples per second" in words(plots[3])


def test_smooth_is_a_mean_that_passes_over_gaps_and_narrows_at_both_ends() -> None:
    values = np.array([8.0, 2.0, 5.0, math.nan, 3.0, 1.0])
    expected = [8.0, 5.0, (8 + 2 + 5 + 3) / 4, (5 + 3) / 2, 2.0, 1.0]
    assert smooth(values, 5)[:3] == pytest.approx(expected[:3])
    assert smooth(np.arange(100.0), 41)[[0, 2, 50, 99]] == pytest.approx([2.0, 3.0, 50.0, 97.0])
    assert smooth(values, 3) == pytest.approx([8.0, 5.0, 3.5, 4.0, 2.0, 1.0])
    assert np.isnan(smooth(np.array([math.nan, math.nan]), 3)).all()


def test_thin_keeps_every_peak_and_the_order() -> None:
    steps = np.arange(50_000.0)
    values = np.sin(steps)
    values[[777, 31_000]] = 50.0, -50.0
    values[10_000:20_000] = math.nan
    few_steps, few_values = thin(steps, values)
    assert len(few_values) <= 2000
    assert (few_values == values[few_steps.astype(int)])[np.isfinite(few_values)].all()
    assert (np.diff(few_steps) > 0).all()
    assert (np.nanmax(few_values), np.nanmin(few_values)) == (50.0, -50.0)
    assert np.isnan(few_values).any()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_matplotlib(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(MissingExtra, match=r"pip install 'drumline\[report\]'"):
        draw_plots([], [], "cpu")
