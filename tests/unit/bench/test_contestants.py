"""Contestants: which take part, how each is started, and what counts as its result."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import drumline
from drumline.bench.contestants import (
    Contestant,
    Start,
    choose,
    command_of,
    environment,
    found_line,
    read_contestants,
)
from drumline.errors import ConfigError
from drumline.launcher.spec import MARK

ROOT = Path(__file__).parents[3]
LINE = {"name": "a", "units_per_s": 2.0, "step_s": [1.0], "peak_memory_bytes": 3, "losses": [1, 0], "versions": {}}


def contestant(name: str, **more: object) -> Contestant:
    return Contestant.model_validate({"name": name, "script": f"{name}.py", "processes": "each", **more})


def start(num_devices: int = 4, gpus: tuple[str, ...] = ()) -> Start:
    return Start(Path("peers"), Path("tasks/tiny.json"), num_devices, gpus, 10.0)


def test_the_folder_of_this_repository_has_all_peers_of_the_design() -> None:
    folder = ROOT / "benchmarks" / "peers"
    known = read_contestants(folder)
    assert [each.name for each in known] == [
        "torch DDP by hand",
        "torch DataParallel",
        "accelerate",
        "Lightning Fabric",
        "HF Trainer",
        "drumline single",
        "drumline data_parallel",
        "drumline ddp",
        "drumline fsdp",
    ]
    assert all((folder / each.script).is_file() for each in known)


def test_a_folder_without_a_list_is_refused_and_says_where_the_list_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it has no contestants") as caught:
        read_contestants(tmp_path)
    assert "benchmarks/peers" in caught.value.fix and "--peers-dir" in caught.value.fix


@pytest.mark.parametrize("text", ["{", "[1]", '[{"name": "a", "script": "a.py", "processes": "both"}]', "7"])
def test_a_broken_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "contestants.json").write_text(text)
    with pytest.raises(ConfigError, match="no list of contestants"):
        read_contestants(tmp_path)


def test_they_are_chosen_by_the_beginning_of_their_name_in_the_folders_order() -> None:
    there = [contestant("torch ddp"), contestant("accelerate"), contestant("drumline ddp")]
    assert choose(there, ()) == there
    assert choose(there, ("drumline", "torch")) == [there[0], there[2]]
    with pytest.raises(ConfigError, match="'jax'") as caught:
        choose(there, ("torch", "jax"))
    assert "accelerate" in caught.value.fix


def test_what_is_missing_is_known_without_importing_it() -> None:
    assert contestant("a", packages=["json", "no_such_package"]).missing() == ["no_such_package"]


def test_a_process_a_device_runs_under_torchs_launcher_and_others_do_not() -> None:
    each, one = contestant("a"), contestant("b", processes="one", arguments=["ddp"], num_devices=1)
    task = str(Path("tasks/tiny.json").resolve())
    launched = command_of(start(), each)
    assert launched[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert "--nproc-per-node=4" in launched and launched[-3:] == ["a.py", task, "4"]
    assert command_of(start(), one) == [sys.executable, "b.py", task, "1", "ddp"]
    assert command_of(start(1), each) == [sys.executable, "a.py", task, "1"]


def test_a_contestant_sees_its_gpus_alone_and_this_drumline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    found = environment(start(2, ("GPU-a", "GPU-b")), 1, "mark")
    assert (found["CUDA_VISIBLE_DEVICES"], found[MARK]) == ("GPU-a", "mark")
    assert found["PYTHONPATH"] == os.pathsep.join([str(Path(drumline.__file__).parents[1]), "elsewhere"])


def test_the_result_is_the_last_whole_line_with_every_value() -> None:
    old, new = json.dumps({**LINE, "units_per_s": 1.0}), json.dumps(LINE)
    assert found_line(f'noise\n{old}\n{new}\n{{"train_loss": 5.3}}\n{{broken\n') == LINE
    assert found_line('{"name": "a"}\nnoise') is None
