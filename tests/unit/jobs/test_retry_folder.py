"""The folder of a job that goes on where another one stood: all of it, or nothing."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from drumline.config.load import config_from_mapping, dump_config, load_config
from drumline.errors import ConfigError, StoreError
from drumline.jobs.retry_folder import bring_rows, bring_run, has_checkpoint, write_rows, writing


@pytest.fixture
def old(tmp_path: Path) -> Path:
    run = tmp_path / "old" / "run"
    (run / "checkpoints" / "step_4" / "node_0").mkdir(parents=True)
    (run / "checkpoints" / ".step_8.tmp").mkdir()
    (run / "checkpoints" / "step_6").mkdir()
    (run / "model").mkdir()
    settings = {
        "run_dir": str(run),
        "data": {"kind": "records", "train": [f"{tmp_path}/old/rows.jsonl", f"{tmp_path}/older/rows.jsonl"]},
        "train": {"global_batch": 4, "epochs": 1},
    }
    (run / "config.yaml").write_text(dump_config(config_from_mapping(settings, "a test")))
    (run / "checkpoints" / "step_4" / "node_0" / "weights").write_bytes(b"weights")
    manifest = {"step": 4, "files": [], "world_size": 1, "kind": "single", "format": "whole"}
    (run / "checkpoints" / "step_4" / "manifest.json").write_text(json.dumps(manifest))
    (run / "model" / "config.json").write_text("{}")
    (run / "exit.json").write_text("{}")
    return tmp_path / "old"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return tmp_path / "new"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_run_is_brought_without_its_end_and_without_half_checkpoints(old: Path, new: Path, tmp_path: Path) -> None:
    assert has_checkpoint(old) and not has_checkpoint(new)
    bring_run(old, new)
    weights, manifest = "checkpoints/step_4/node_0/weights", "checkpoints/step_4/manifest.json"
    assert files(new / "run") == [manifest, weights, "config.yaml", "model/config.json"]
    assert (new / "run" / weights).samefile(old / "run" / weights)
    assert not (new / "run" / "model" / "config.json").samefile(old / "run" / "model" / "config.json")
    config = load_config(new / "run" / "config.yaml")
    assert config.run_dir == new / "run" and stat.S_IMODE((new / "run").stat().st_mode) == 0o700
    assert config.data is not None
    assert config.data.model_dump()["train"] == [f"{new}/rows.jsonl", f"{tmp_path}/older/rows.jsonl"]
    assert has_checkpoint(new)


def test_what_one_of_the_two_removes_stays_with_the_other(old: Path, new: Path) -> None:
    bring_run(old, new)
    shutil.rmtree(old)
    assert (new / "run" / "checkpoints" / "step_4" / "node_0" / "weights").read_bytes() == b"weights"


def test_where_there_are_no_links_files_are_copied(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_rows(old, b'{"text": "a"}\n')
    assert bring_rows(old, new)
    bring_run(old, new)
    assert stat.S_IMODE((new / "rows.jsonl").stat().st_mode) == 0o600
    assert not (new / "rows.jsonl").samefile(old / "rows.jsonl") and has_checkpoint(new)


def test_a_run_that_cannot_be_brought_leaves_nothing(old: Path, new: Path) -> None:
    (old / "run" / "config.yaml").write_text("nonsense: true")
    with pytest.raises(ConfigError):
        bring_run(old, new)
    assert not list(new.iterdir())


def test_rows_are_their_owners_and_are_written_once(new: Path, old: Path) -> None:
    assert not bring_rows(old, new)
    write_rows(new, b"rows\n")
    assert stat.S_IMODE((new / "rows.jsonl").stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="cannot be written"), writing(new):
        write_rows(new, b"others\n")
    assert (new / "rows.jsonl").read_bytes() == b"rows\n"
