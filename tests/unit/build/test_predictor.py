"""One worker of a prediction run: from the config in its directory to the final file, and what it ends with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline.build import predictor
from drumline.build.predictor import as_program, log_of, main, own_device, start_of
from drumline.config.infer_file import dump_inference_config, load_inference_config
from drumline.config.inference import InferenceConfig
from drumline.errors import ConfigError, DataError, HardwareError, Interrupted
from drumline.launcher.independent_child import Start
from drumline.predictions import PredictionDir
from drumline.rundir import STOP_REQUEST
from tests.tiny_models import save_bert

WORDS = ("a whale", "the ship upon the sea", "x")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


def run_of(folder: Path, model: Path, task: Any = "embed", **sections: Any) -> PredictionDir:
    """A directory as the command makes it, with four rows, one of which has no text."""
    rows = [{"id": n, "text": word} for n, word in enumerate(WORDS)] + [{"id": 3}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {"rows": {"files": [str(folder / "rows.jsonl")]}}
    values["output"] = {"file": str(folder / "out.jsonl")}
    config = load_inference_config(None, {**values, "model": {"path": str(model)}, "task": task, **sections})
    place = PredictionDir(config.directory)
    place.run.logs.mkdir(parents=True)
    place.run.config.write_text(dump_inference_config(config))
    return place


def test_a_worker_answers_all_rows_and_logs_to_a_file_of_its_own(bert: Path, tmp_path: Path) -> None:
    place = run_of(tmp_path, bert)
    main(place.path)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    assert [len(row["embedding"]) for row in found[:3]] == [32] * 3
    assert (found[3]["embedding"], found[3]["error"]) == (None, "the row has no field 'text'")
    assert len(list(place.run.logs.glob("worker_*.log"))) == 1
    main(place.path)  # there is nothing left to do
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4


def test_under_a_launcher_of_ours_a_request_to_stop_is_heeded_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = run_of(tmp_path, tmp_path / "no model")
    place.run.requests.mkdir()
    (place.run.requests / STOP_REQUEST).touch()
    start = Start(launcher=1, pipe=2, number=5, error_file=str(place.run.logs / "worker_5.error.json"))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", predictor.ALONE, start.to_text(), "module"])
    with pytest.raises(Interrupted) as caught:
        main(place.path)
    assert caught.value.code == 3


def test_started_by_hand_it_heeds_no_request_that_another_attempt_had(bert: Path, tmp_path: Path) -> None:
    place = run_of(tmp_path, bert)
    place.run.requests.mkdir()
    (place.run.requests / STOP_REQUEST).touch()
    os.utime(place.run.requests / STOP_REQUEST, (1, 1))
    main(place.path)
    assert (tmp_path / "out.jsonl").is_file()


def test_what_is_wrong_with_the_rows_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    place = run_of(tmp_path, tmp_path / "no model")
    (tmp_path / "rows.jsonl").unlink()
    with pytest.raises(SystemExit) as caught:
        as_program(place.path)
    assert caught.value.code == 2


def test_a_column_that_is_not_there_and_a_missing_prompt_are_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    rows = {"files": [str(tmp_path / "rows.jsonl")], "text": "body"}
    with pytest.raises(DataError, match=r"no row has a column 'body', which rows\.text names"):
        main(run_of(tmp_path, tmp_path / "no model", rows=rows).path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ConfigError, match="no prompt"):
        main(run_of(other, tmp_path / "no model", {"kind": "generate"}).path)


def test_started_by_hand_it_says_what_is_wrong(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = run_of(tmp_path, bert, "classify")
    with pytest.raises(SystemExit) as caught:
        as_program(place.path)
    assert caught.value.code == 2
    assert "error: " in (said := capsys.readouterr().err)
    assert "fix: give a model that was trained for this task" in said


def test_under_a_launcher_of_ours_the_error_is_its_own(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = run_of(tmp_path, bert, "classify")
    error_file = place.run.logs / "worker_5.error.json"
    start = Start(launcher=1, pipe=2, number=5, error_file=str(error_file))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", predictor.ALONE, start.to_text(), "module"])
    with pytest.raises(ConfigError, match="the classifier's weights"):
        as_program(place.path)
    assert start_of(sys.orig_argv) == start
    assert log_of(place, start) == place.run.logs / "worker_5.log"
    assert (place.run.logs / "worker_5.log").is_file()


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Four, of which one is taken."""
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    yield taken


def settings(**sections: Any) -> InferenceConfig:
    values = {"model": {"path": "m"}, "rows": {"files": ["r"]}, "output": {"file": "o.jsonl"}}
    return InferenceConfig.model_validate({**values, **sections})


def test_among_ranks_the_local_one_chooses_the_gpu(
    four_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**known, "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert own_device(settings(), alone=False) == torch.device("cuda", 1)
    assert own_device(settings(split={}), alone=False) == torch.device("cuda", 2)
    assert own_device(settings(), alone=True) == torch.device("cuda", 0)
    assert [device.index for device in four_gpus] == [1, 2, 0]
    assert own_device(settings(hardware={"device": "cpu"}), alone=True) == torch.device("cpu")


def test_a_gpu_that_is_asked_for_and_not_there_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert own_device(settings(), alone=True) == torch.device("cpu")
    with pytest.raises(HardwareError, match="sees no GPU"):
        own_device(settings(hardware={"device": "cuda"}), alone=True)
