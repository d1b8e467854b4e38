"""Results of benchmarks beside each other: keys, history, baselines, efficiencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.errors import ConfigError
from drumline.rundir import read_lines, write_json
from drumline.track.bench import (
    compare_results,
    efficiencies,
    key_of,
    last_alike,
    measurements,
    read_baseline,
    remember,
    size_of,
)

SAMPLES = [1.0, 1.01, 0.99, 1.0, 1.005, 0.995]


def result(factor: float = 1.0, key: str = "k") -> dict[str, Any]:
    """What bench train gives, as far as a comparison looks at it."""
    return {
        "kind": "train",
        "key": key,
        "units_per_s": 1 / factor,
        "step_s": {"samples": [factor * s for s in SAMPLES]},
    }


def test_a_key_is_of_settings_and_devices_and_not_of_names() -> None:
    base = key_of("train", {"seed": 0, "name": "a", "run_dir": "x"}, ["H100"])
    assert base == key_of("train", {"run_dir": None, "seed": 0}, ["H100"])
    others = [("comm", {"seed": 0}, ["H100"]), ("train", {"seed": 1}, ["H100"]), ("train", {"seed": 0}, ["H100"] * 2)]
    assert len({base, *(key_of(*other) for other in others)}) == 4


def test_every_kind_names_what_it_measured() -> None:
    comm = {"kind": "comm", "rows": [{"collective": "broadcast", "bytes": 4096, "seconds": {"samples": [1.0]}}]}
    data = {"kind": "data", "rows": [{"num_workers": 2, "interval": {"samples": [5.0]}}]}
    scaling = {"kind": "scaling", "rows": [{"mode": "weak", "processes": 2, "step_s": {"samples": [0.5]}}]}
    assert measurements(comm) == {"broadcast of 4 KiB": [1.0]}
    assert measurements(data) == {"rows/s with 2 loader processes": [5.0]}
    assert measurements(scaling) == {"step time, weak, 2 processes": [0.5]}
    assert size_of(64 * 2**20) == "64 MiB"


def test_the_history_gives_the_newest_of_the_same_settings(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    assert last_alike(history, "k") is None
    for factor, key in ((1.0, "k"), (2.0, "k"), (3.0, "other")):
        remember(history, result(factor, key), tmp_path / "run")
    found = last_alike(history, "k")
    assert found is not None
    [compared] = compare_results(found, result(2.5))
    assert (compared["name"], compared["verdict"]) == ("step time", "change")
    assert compared["change"] == pytest.approx(0.25, abs=0.02)
    assert len(list(read_lines(history))) == 3


def test_a_baseline_is_a_folder_a_result_or_a_history(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", result(2.0))
    remember(tmp_path / "history.jsonl", result(4.0), tmp_path)
    medians = [
        compare_results(read_baseline(path, "train"), result(2.0))[0]["change"]
        for path in (tmp_path, tmp_path / "result.json", tmp_path / "history.jsonl")
    ]
    assert medians == [0.0, 0.0, -0.5]


def test_what_is_no_baseline_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", result())
    (tmp_path / "broken.json").write_text("[1, 2]")
    for path, kind, words in (
        (tmp_path / "none", "train", "there is no result"),
        (tmp_path, "comm", "holds no result of bench comm"),
        (tmp_path / "broken.json", "train", "is no result of a benchmark"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_baseline(path, kind)


def test_efficiency_is_against_the_fewest_processes_of_the_mode() -> None:
    rows = [
        {"mode": "strong", "processes": 2, "units_per_s": 200.0},
        {"mode": "strong", "processes": 4, "units_per_s": 300.0},
        {"mode": "weak", "processes": 1, "units_per_s": 100.0},
        {"mode": "weak", "processes": 4, "units_per_s": 380.0},
    ]
    found = [(row["speed_up"], row["efficiency"]) for row in efficiencies(rows)]
    assert found == [(2.0, 1.0), (3.0, 0.75), (1.0, 1.0), (3.8, 0.95)]
