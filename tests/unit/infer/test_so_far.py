"""What is answered so far, of a run that has ended: all of it, in the form that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from drumline.config.infer_file import dump_inference_config, load_inference_config
from drumline.errors import ConfigError, DataError
from drumline.infer.so_far import is_finished, main, write_whole
from drumline.predictions import PredictionDir
from drumline.rundir import write_json


@pytest.fixture
def run(tmp_path: Path) -> PredictionDir:
    values = {"model": {"path": "m"}, "rows": {"files": ["r"]}, "output": {"file": str(tmp_path / "out.jsonl")}}
    config = load_inference_config(None, values)
    place = PredictionDir(config.directory)
    place.path.mkdir()
    place.run.config.write_text(dump_inference_config(config))
    (tmp_path / "out.jsonl").write_text('{"id": 1, "answer": "a"}\n{"id": 2, "answer": null, "error": "e"}\n')
    write_json(place.summary, {"num_rows": 2})
    return place


def test_a_finished_run_is_written_whole_in_any_form(
    run: PredictionDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_finished(run)
    main([str(run.path), str(tmp_path / "same.jsonl")])
    assert json.loads(capsys.readouterr().out) == {"rows": 2, "whole": True}
    assert (tmp_path / "same.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert write_whole(run, tmp_path / "other.csv") == 2
    assert (tmp_path / "other.csv").read_text() == "id,answer,error\n1,a,\n2,,e\n"
    write_whole(run, tmp_path / "other.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "other.parquet").column("id").to_pylist() == [1, 2]


def test_nothing_is_written_over_and_a_lost_output_is_said(run: PredictionDir, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        write_whole(run, tmp_path / "out.jsonl")
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(DataError, match="not there any more"):
        write_whole(run, tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()
