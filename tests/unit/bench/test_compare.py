"""A comparison's preparations, its medians, and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline.bench.compare import Options, check_setting, prepare, read_runs, summarise
from drumline.bench.compare_page import HEADER, compare_rows, write_compare_page
from drumline.bench.contestants import Contestant, Ran, Start
from drumline.errors import ConfigError, HardwareError
from drumline.rundir import LineWriter


def contestant(name: str, **more: object) -> Contestant:
    return Contestant.model_validate({"name": name, "script": f"{name}.py", "processes": "each", **more})


def ran(name: str, number: int, units_per_s: float) -> Ran:
    line = {"name": name, "units_per_s": units_per_s, "step_s": [0.1, 0.3, 0.2], "peak_memory_bytes": 2**30}
    return Ran(name, number, "", {**line, "losses": [5.5, 4.0], "versions": {"torch": "2"}, "device": "cpu"})


START = Start(Path("peers"), Path("tiny.json"), 2, (), 10.0)
PEERS = [contestant("base"), contestant("quick"), contestant("torn"), contestant("gone", packages=["no_such_package"])]
RUNS = [
    *(ran("base", i, rate) for i, rate in enumerate([90.0, 100.0, 900.0])),
    *(ran("quick", i, rate) for i, rate in enumerate([150.0, 250.0])),
    Ran("torn", 0, "exit status 1\nTraceback: <oom>", {}),
]


def test_medians_and_their_ratio_to_the_first() -> None:
    base, quick, torn, gone = summarise(PEERS, START, RUNS)
    assert (base["units_per_s"], base["ratio"], base["runs"], base["step_s"]) == (100.0, 1.0, [90.0, 100.0, 900.0], 0.2)
    assert (quick["units_per_s"], quick["ratio"], quick["status"]) == (200.0, 2.0, "ran")
    assert torn["status"] == "failed" and "<oom>" in torn["why"] and "units_per_s" not in torn
    assert (gone["status"], gone["why"]) == ("not installed", "not installed: no_such_package")


def test_without_the_first_there_is_no_ratio() -> None:
    _, quick, *_ = summarise(PEERS, START, [run for run in RUNS if run.name != "base"])
    assert quick["ratio"] is None


def test_a_failed_round_is_counted_and_not_averaged() -> None:
    [row] = summarise(PEERS[:1], START, [*RUNS[:1], Ran("base", 2, "exit status 1", {})])
    assert (row["status"], row["failed_runs"], row["runs"]) == ("ran", 1, [90.0])


def test_of_a_run_that_was_made_again_the_last_counts(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "runs.jsonl")
    for each in (Ran("base", 1, "exit status 1", {}), ran("base", 1, 7.0), ran("base", 2, 8.0)):
        writer.write(each.to_json())
    writer.close()
    found = read_runs(tmp_path / "runs.jsonl")
    assert {key: run.line["units_per_s"] for key, run in found.items()} == {("base", 1): 7.0, ("base", 2): 8.0}


def test_a_folder_is_of_one_task_on_one_set_of_devices(tmp_path: Path) -> None:
    setting = tmp_path / "setting.json"
    check_setting(setting, {"num_devices": 2})
    check_setting(setting, {"num_devices": 2})
    with pytest.raises(ConfigError, match="another task") as caught:
        check_setting(setting, {"num_devices": 4})
    assert "--out" in caught.value.fix


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    for name, device in (("tiny", "cpu"), ("large", "cuda")):
        (tmp_path / "tasks" / f"{name}.json").write_text(json.dumps({"device": device, "num_devices": 3}))
    return tmp_path


def test_the_task_says_how_many_devices_unless_the_user_does(peers: Path) -> None:
    assert prepare(Options(task="tiny", peers_dir=peers)).num_devices == 3
    assert prepare(Options(task="tiny", peers_dir=peers, num_devices=2)).num_devices == 2
    assert prepare(Options(task=str(peers / "tasks/tiny.json"), peers_dir=Path("elsewhere"))).num_devices == 3


def test_an_unknown_task_is_refused_with_those_there_are(peers: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(Options(task="tinny", peers_dir=peers))
    assert "large, tiny" in caught.value.fix


def test_a_task_for_gpus_is_refused_without_them(peers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(HardwareError, match="there are 0"):
        prepare(Options(task="large", peers_dir=peers))


def test_table_and_page_show_every_contestant_and_no_markup_of_a_log(tmp_path: Path) -> None:
    result: dict[str, Any] = {"task": {"name": "tiny"}, "rounds": 3, "contestants": summarise(PEERS, START, RUNS)}
    rows = compare_rows(result)
    assert all(len(row) == len(HEADER) for row in rows)
    assert rows[1][:6] == ["quick", "2", "200", "2.0000", "150 250", "200.00 ms"]
    assert rows[2][2] == "failed: exit status 1" and rows[3][2] == "not installed: no_such_package"
    page = write_compare_page(result, tmp_path).read_text()
    assert all(each.name in page for each in PEERS)
    assert "&lt;oom&gt;" in page and "<oom>" not in page
