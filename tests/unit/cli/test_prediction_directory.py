"""The directory of a prediction run: made, gone on with, begun anew, finished, or refused."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from drumline.cli.prediction_directory import check_places, come_to, finished, join, record_end, records_of, take
from drumline.config.infer_file import load_inference_config
from drumline.config.inference import InferenceConfig
from drumline.errors import ConfigError, DataError, RunDirExists
from drumline.predictions import DONE, PredictionDir
from drumline.rundir import write_json


def config_in(folder: Path, *overrides: str, out: str = "out.jsonl") -> InferenceConfig:
    (folder / "in.jsonl").touch()
    values = {"model": {"path": "m"}, "rows": {"files": [str(folder / "in.jsonl")]}}
    return load_inference_config(None, {**values, "output": {"file": str(folder / out)}}, overrides)


def taken(config: InferenceConfig) -> bool:
    found = take(PredictionDir(config.directory), config)
    found.release()
    assert not found.helps
    return found.goes_on


def answered(config: InferenceConfig) -> PredictionDir:
    """A run with one batch done."""
    taken(config)
    directory = PredictionDir(config.directory)
    directory.state.write_bytes(bytes([DONE, 1]))
    return directory


def test_a_new_directory_is_its_owners_alone(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    assert not taken(config)
    assert stat.S_IMODE(config.directory.stat().st_mode) == 0o700
    assert load_inference_config(PredictionDir(config.directory).run.config, {}) == config


def test_a_second_launcher_is_kept_out(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = take(PredictionDir(config.directory), config)
    with pytest.raises(RunDirExists, match="a run goes on in"):
        take(PredictionDir(config.directory), config)
    first.release()
    assert not taken(config)


def test_a_directory_that_another_machine_makes_just_now_is_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_in(tmp_path)
    found = Path.exists

    def made_a_moment_later(path: Path, **options: bool) -> bool:
        if path != config.directory or found(path):
            return found(path, **options)
        path.mkdir()
        return False

    monkeypatch.setattr(Path, "exists", made_a_moment_later)
    assert not taken(config)


def test_another_machines_launcher_helps_by_the_settings_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, other = config_in(tmp_path), config_in(tmp_path, "task.max_new_tokens=3")
    directory = PredictionDir(config.directory)
    first = take(directory, config)
    (directory.run.requests).mkdir()
    (directory.run.requests / "stop").touch()
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    second = take(directory, config)
    assert second.helps and not first.helps
    assert (directory.run.requests / "stop").exists()  # meant for this attempt
    with pytest.raises(RunDirExists, match="a run goes on in"):
        take(directory, config)
    second.release()
    with pytest.raises(ConfigError, match="max_new_tokens"):
        take(directory, other)
    first.release()
    third = take(directory, config)
    assert not third.helps  # nobody leads any more
    third.release()


def test_answers_are_gone_on_with_on_other_hardware_and_under_no_other_settings(tmp_path: Path) -> None:
    directory = answered(config_in(tmp_path))
    other = config_in(tmp_path, "hardware.num_processes=3")
    (directory.run.requests).mkdir()
    (directory.run.requests / "stop").touch()
    assert taken(other)
    assert load_inference_config(directory.run.config, {}).hardware.num_processes == 3
    assert not (directory.run.requests / "stop").exists()
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        taken(config_in(tmp_path, "seed=1"))
    assert directory.state.exists()


def test_what_has_no_answers_begins_anew_under_other_settings(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    taken(config)
    directory = PredictionDir(config.directory)
    directory.rows.touch()
    assert not taken(config)
    assert directory.rows.exists()
    assert not taken(config_in(tmp_path, "seed=1"))
    assert not directory.rows.exists() and directory.windows.is_dir()
    assert [each.name for each in directory.path.iterdir() if each.name.startswith(".")] == []


def test_what_failed_without_answers_begins_anew(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    taken(config)
    directory = PredictionDir(config.directory)
    directory.rows.touch()
    record_end(directory, 2, "no such column", {})
    assert not taken(config)
    assert not directory.rows.exists() and not directory.run.exit.exists()


def failed_at_a_batch(config: InferenceConfig) -> PredictionDir:
    """A run that failed after a worker had begun a batch, with no answer."""
    taken(config)
    directory = PredictionDir(config.directory)
    found = Path(config.rows.files[0]).stat()
    source = {"path": config.rows.files[0], "size": found.st_size, "mtime_ns": found.st_mtime_ns}
    write_json(directory.rows_facts, {"num_rows": 1, "sources": [source]})
    directory.state.write_bytes(bytes([0, 2]))
    record_end(directory, 1, "no worker is left", {})
    return directory


def test_what_was_learnt_of_deadly_rows_stays_unless_the_data_change(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    directory = failed_at_a_batch(config)
    assert not taken(config)
    assert directory.state.read_bytes() == bytes([0, 2])
    record_end(directory, 1, "no worker is left", {})
    Path(config.rows.files[0]).write_text("{}\n")
    assert not taken(config)
    assert not directory.state.exists()


def test_what_is_known_of_a_batch_in_trouble_stays(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    directory = failed_at_a_batch(config)
    directory.state.write_bytes(bytes(2))
    (directory.trouble / "1.json").write_text("{}")
    before = come_to(directory)
    taken(config)
    assert (directory.trouble / "1.json").exists() and come_to(directory) == before
    directory.state.write_bytes(bytes([DONE, 0]))
    assert come_to(directory) != before


def test_records_are_those_of_this_machine(tmp_path: Path) -> None:
    directory = answered(config_in(tmp_path))
    own = directory.workers / f"{socket.gethostname()}-12-abcdef.jsonl"
    for file in (own, directory.workers / "elsewhere-12-abcdef.jsonl", own.with_name(own.name.replace("12", "112"))):
        file.touch()
    assert records_of(directory, 12) == [own]


def test_a_finished_run_is_known_by_its_summary_and_settings(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    directory = answered(config)
    assert not finished(directory, config)
    directory.summary.write_text("{}")
    directory.rows.touch()
    assert not finished(directory, config)  # killed just before the file got its name
    config.output.file.touch()
    assert finished(directory, config)
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        finished(directory, config_in(tmp_path, "seed=1"))
    config.output.file.unlink()
    directory.rows.unlink()
    with pytest.raises(ConfigError, match="is finished, and its output"):
        finished(directory, config)


def test_an_output_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    config.output.file.touch()
    with pytest.raises(ConfigError, match="exists already"):
        finished(PredictionDir(config.directory), config)
    with pytest.raises(ConfigError, match="exists already"):
        finished(answered(config), config)


def test_strangers_are_left_alone(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    config.directory.mkdir()
    (config.directory / "work.txt").touch()
    for enter in (take, join):
        with pytest.raises(RunDirExists, match="holds no prediction run: it has no config"):
            enter(PredictionDir(config.directory), config)
    (config.directory / "config.yaml").write_text("task: {kind: language_modelling}\n")
    with pytest.raises(RunDirExists, match="none that can be read"):
        take(PredictionDir(config.directory), config)
    assert (config.directory / "work.txt").exists()


def test_of_several_that_join_at_once_the_first_ones_settings_stay(tmp_path: Path) -> None:
    first, second = config_in(tmp_path), config_in(tmp_path, "max_restarts=1")
    directory = PredictionDir(first.directory)
    join(directory, first)
    join(directory, second)
    assert load_inference_config(directory.run.config, {}) == first
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        join(directory, config_in(tmp_path, "seed=1"))
    assert sorted(each.name for each in directory.path.iterdir()) == ["config.yaml", "ledger", "logs", "workers"]


def test_places_are_looked_at_before_anything_is_made(tmp_path: Path) -> None:
    check_places(config_in(tmp_path, out="new/out.csv"))
    with pytest.raises(ConfigError, match="no ending"):
        check_places(config_in(tmp_path, out="out.txt"))
    with pytest.raises(ConfigError, match=r"/proc/x cannot be made"):
        check_places(config_in(tmp_path, out="/proc/x/out.csv"))
    with pytest.raises(DataError, match="there is no file"):
        check_places(config_in(tmp_path, f"rows.files=[{tmp_path}/absent.csv]"))
    with pytest.raises(ConfigError, match=r"run directory .* cannot be made or written"):
        taken(config_in(tmp_path, "run_dir=/proc/run"))
