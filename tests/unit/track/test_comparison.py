"""Several runs on one page: names that tell them apart, settings that differ, and curves over each other."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from drumline.rundir import LineWriter, RunDir, write_json
from drumline.track.comparison import differences, read_runs, tell_apart, write_comparison
from drumline.track.comparison_page import render_comparison
from drumline.track.comparison_plots import Curves, draw_comparison
from drumline.track.figures import PAGE_COLOURS, Plot
from drumline.track.plots import PLOT_NAMES

CONFIG = "name: {name}\nrun_dir: {name}\ntrain: {{lr: {lr}, epochs: 2}}\n"


def make_run(path: Path, lr: float, name: str = "moby", unit: str = "tokens") -> RunDir:
    path.parent.mkdir(parents=True, exist_ok=True)
    run = RunDir.create(path)
    run.config.write_text(CONFIG.format(name=name, lr=lr))
    write_json(run.plan, {"device": "cpu", "world_size": 2, "steps": 60, "precision": "fp32", "global_batch": 8})
    writer = LineWriter(run.metrics)
    for step in range(10, 61, 10):
        rest = {"lr": lr, "units_per_s": 3e3, "samples_per_s": 30.0, "unit": unit, "elapsed_s": 61.0}
        writer.write({"kind": "train", "step": step, "loss": 3.0, "memory_resident_bytes": [2**29, 2**30], **rest})
    writer.write({"kind": "eval", "step": 60, "loss": 2.0 + lr, "accuracy": 0.75, "count": 9})
    writer.close()
    write_json(run.exit, {"exit_status": 0, "reason": "done", "message": "", "steps": 60})
    return run


class Words(HTMLParser):
    """The words of a page, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href"}]

    def handle_data(self, data: str) -> None:
        self.words += [data.strip()] if data.strip() else []

    def after(self, word: str, num: int) -> list[str]:
        place = self.words.index(word) + 1
        return self.words[place : place + num]


def words_of(plot: Plot) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.fromstring(plot.svg).iter() if node.tag.endswith("text")]


def test_equal_names_get_as_much_of_the_path_as_they_need() -> None:
    folders = [Path("/runs/a/one"), Path("/runs/b/one"), Path("/runs/b/two"), Path("/runs/ahab")]
    assert tell_apart(["moby", "moby", "moby", "ahab"], folders) == [
        "moby (a/one)",
        "moby (b/one)",
        "moby (two)",
        "ahab",
    ]
    assert tell_apart(["one", "one"], [Path("/one"), Path("/a/one")]) == ["one (/one)", "one (a/one)"]


def test_settings_that_are_equal_or_name_the_run_are_left_out() -> None:
    first = {"name": "a", "run_dir": "x", "train": {"lr": 0.1, "epochs": 2}, "parts": [{"weight": 1}, {"weight": 2}]}
    second = {"name": "b", "train": {"lr": 0.2, "epochs": 2, "ids": [1, 2]}, "parts": [{"weight": 1}, {"weight": 3}]}
    assert differences([first, second, {}]) == {
        "train.lr": ["0.1", "0.2", "unknown"],
        "parts[1].weight": ["2", "3", "unknown"],
        "train.ids": ["not set", "1, 2", "unknown"],
    }
    assert differences([first, first]) == differences([first, {}]) == differences([]) == {}


def test_the_page_has_numbers_and_differing_settings_side_by_side_and_loads_nothing(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / folder / "run", lr).path for folder, lr in (("a", 0.5), ("b", 0.25))]
    runs = read_runs([*paths, paths[0] / ".." / "run"])
    index = write_comparison(runs, tmp_path / "out")
    assert {file.name for file in index.parent.iterdir()} == {"index.html", *(f"{name}.png" for name in PLOT_NAMES)}
    page = Words(index.read_text(encoding="utf-8"))
    assert page.words[0] == "Comparison of moby (a/run) and moby (b/run) - drumline report"
    assert page.after("state", 2) == ["done", "done"]
    assert page.after("evaluation loss", 2) == ["2.5000, best 2.5000 at update 60", "2.2500, best 2.2500 at update 60"]
    assert page.after("evaluation accuracy", 2) == ["0.7500"] * 2
    assert page.after("updates", 2) == ["60 of 60"] * 2
    assert page.after("tokens/s (median)", 2) == ["3,000"] * 2
    assert page.after("memory (highest of all ranks)", 2) == ["1.0 GiB"] * 2
    assert page.after("train.lr", 2) == ["0.5", "0.25"]
    assert not {"train.epochs", "run_dir", "script"} & {*page.words, *page.tags}
    assert str(paths[1]) in page.words
    assert page.tags.count("svg") == 5
    assert page.links and all(link.startswith("#") for link in page.links)


def test_broken_and_missing_files_cost_their_own_part(tmp_path: Path) -> None:
    whole, broken, killed = (make_run(tmp_path / name, 0.5, name) for name in ("whole", "broken", "killed"))
    broken.config.write_text("name: [")
    broken.metrics.write_bytes(broken.metrics.read_bytes().splitlines(keepends=True)[0] + b"{\n")
    for path in (killed.exit, killed.plan, killed.config):
        path.unlink()
    runs = read_runs([whole.path, broken.path, killed.path])
    page = Words(render_comparison(runs, []))
    assert "All settings are equal." in page.words
    assert page.after("state", 3) == ["done", "done", "no end on record: it is still running, or was killed"]
    assert page.after("What could not be read", 9)[2:5:2] == ["broken", "broken"]
    assert any(word.startswith("metrics.jsonl is broken after 1 records") for word in page.words)


def test_nothing_from_a_file_becomes_markup(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    first, second = make_run(tmp_path / evil, 0.5), make_run(tmp_path / "other", 0.25)
    for run in (first, second):
        run.config.write_text(f"{evil!r}: {run.path.name!r}\n")
        write_json(run.exit, {"exit_status": 1, "reason": evil, "message": evil})
    page = Words(write_comparison(read_runs([first.path, second.path]), tmp_path / "out").read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert page.words.count(evil) >= 6


def curves(label: str, **changes: Any) -> Curves:
    record = {"loss": 2.0, "lr": 1e-3, "units_per_s": 3e3, "samples_per_s": 30.0, "unit": "tokens"} | changes
    return Curves(label, [{"step": step, **record} for step in (1, 2)], [{"kind": "eval", "step": 2, "loss": 1.0}])


def test_each_run_has_a_curve_in_each_plot_and_keeps_its_colour() -> None:
    runs = [curves("one", memory_peak_bytes=[1e9, 3e9]), curves("two"), curves("_$three$", memory_resident_bytes=[1e9])]
    plots = draw_comparison(runs)
    assert tuple(plot.name for plot in plots) == PLOT_NAMES
    for plot in plots[:4]:
        assert {"one", "two", "_$three$"} <= {word.strip() for word in words_of(plot)}
        assert not any(colour in plot.svg for colour in PAGE_COLOURS)
        assert all(f"stroke: var(--{colour})" in plot.svg for colour in ("train", "eval", "green"))
    memory = plots[4]
    assert "two" not in words_of(memory)
    assert "stroke: var(--green)" in memory.svg and "stroke: var(--eval)" not in memory.svg
    assert "tokens per second" in words_of(plots[3])
    assert draw_comparison(runs) == plots


def test_runs_that_count_different_units_are_compared_by_samples() -> None:
    assert "samples per second" in words_of(draw_comparison([curves("one"), curves("two", unit="samples")])[3])


@pytest.mark.parametrize("num", [1, pytest.param(40, marks=pytest.mark.system)])
def test_any_number_of_runs(num: int) -> None:
    plots = draw_comparison([curves(f"run {k} " + "x" * 100, loss=math.nan if k % 2 else k) for k in range(num)])
    assert len([word for word in words_of(plots[0]) if word.startswith("run ")]) == num


def test_runs_without_any_record() -> None:
    plots = draw_comparison([Curves("one", [], []), Curves("two", [], [])])
    assert all("nothing was recorded" in words_of(plot) for plot in plots)
