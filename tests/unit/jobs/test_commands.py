"""The commands of a job: devices by name, the run directory in its folder, and what was chosen before kept."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from drumline.config.load import load_config, read_overrides
from drumline.errors import ConfigError
from drumline.jobs.commands import commands_of
from drumline.jobs.keeper_files import Command
from drumline.jobs.records import Job, Resources, Work

GPUS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1a2b3c4d-d72c-4106-c12f-20bd9faed9f6")


def job_of(work: Work, devices: tuple[str, ...] = GPUS) -> Job:
    return Job("job-1", "ann", work, Resources(devices=len(devices)), 0.0, devices=devices, attempt=1)


def overrides(command: Command) -> dict[str, Any]:
    words = command.words
    return read_overrides([words[index + 1] for index, word in enumerate(words) if word == "--set"])


def test_a_recipe_is_trained_on_the_devices_that_it_was_given(tmp_path: Path) -> None:
    work = Work("train", {"train": {"lr": 1e-5, "max_steps": 3}, "hardware": {"count": 4}})
    [command] = commands_of(job_of(work), tmp_path, tmp_path / "cache")
    assert command.words[3:5] == ("drumline", "train")
    recipe = Path(command.words[5])
    assert stat.S_IMODE(recipe.stat().st_mode) == 0o600
    config = load_config(recipe, [f"{text}" for text in command.words if "=" in text])
    assert (config.train.lr, config.train.max_steps) == (1e-5, 3)
    assert config.hardware.gpus == list(GPUS)
    assert (config.hardware.count, config.hardware.num_processes) == (None, None)
    assert config.run_dir == tmp_path / "run"


def test_slots_are_processes(tmp_path: Path) -> None:
    [command] = commands_of(job_of(Work("train", {}), ("cpu:3", "cpu:5")), tmp_path, tmp_path)
    assert overrides(command)["hardware"] == {"gpus": None, "count": None, "num_processes": 2}


def test_texts_that_came_with_a_request_are_fine_tuned_on_and_the_model_is_written(tmp_path: Path) -> None:
    work = Work("finetune", {"epochs": 2, "batch_size": 8}, model="/models/gpt2", parallel="data_parallel", export=True)
    train, export = commands_of(job_of(work), tmp_path, tmp_path / "cache")
    words = train.words
    assert words[words.index("--model") + 1] == "/models/gpt2"
    assert words[words.index("--data") + 1] == str(tmp_path / "rows.jsonl")
    said = overrides(train)
    assert said["train"] == {"epochs": 2, "global_batch": 8}
    assert said["parallel"] == {"kind": "data_parallel"}
    assert said["data"] == {"cache_dir": str(tmp_path / "cache")}
    assert export.words[-3:] == ("export", str(tmp_path / "run"), str(tmp_path / "model"))
    assert export.makes == str(tmp_path / "model")


def test_files_are_named_one_by_one(tmp_path: Path) -> None:
    work = Work("finetune", {}, model="m", data=("/data/a.jsonl", "/data/b.jsonl"))
    [command] = commands_of(job_of(work), tmp_path, tmp_path / "shared")
    assert [command.words[i + 1] for i, word in enumerate(command.words) if word == "--data"] == list(work.data)
    assert overrides(command)["data"] == {"cache_dir": str(tmp_path / "shared")}


def test_what_is_prepared_of_texts_lies_with_them(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    (folder / "run").mkdir(parents=True)
    for attempt in ("finetune", "train"):
        [command] = commands_of(job_of(Work("finetune", {}, model="m")), folder, tmp_path / "shared")
        assert command.words[4] == attempt
        assert overrides(command)["data"] == {"cache_dir": str(folder / "cache")}
        (folder / "run/config.yaml").write_text("{}")


@pytest.mark.parametrize(
    "work",
    [
        Work("finetune", {}, model="m", data=("DATA/rows.jsonl",)),
        Work("finetune", {}, model="m", data=("DATA/*.jsonl",)),
        Work("finetune", {}, model="DATA"),
        Work("finetune", {"data.template": "DATA/rows.jsonl"}, model="m"),
        Work("train", {"data": {"kind": "records", "train": [{"paths": ["DATA/rows.jsonl"]}]}}),
    ],
)
def test_a_path_that_has_become_a_link_is_not_followed(work: Work, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows.jsonl").write_text("{}")
    text = json.dumps({"settings": dict(work.settings), "data": list(work.data), "model": work.model})
    values = json.loads(text.replace("DATA", str(tmp_path / "data")))
    job = job_of(Work(work.kind, values["settings"], values["model"], data=tuple(values["data"])))
    folder = tmp_path / "job"
    folder.mkdir()
    assert commands_of(job, folder, tmp_path)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    (tmp_path / "data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="leads elsewhere"):
        commands_of(job, folder, tmp_path)


def test_a_later_attempt_goes_on_with_what_was_chosen_on_other_devices(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = tmp_path / "run/config.yaml"
    config.write_text("train: {lr: 0.1}\n")
    work = Work("finetune", {"epochs": 2}, model="m")
    [command] = commands_of(job_of(work, GPUS[1:]), tmp_path, tmp_path)
    assert command.words[3:6] == ("drumline", "train", str(config))
    said = overrides(command)
    assert said["hardware"]["gpus"] == [GPUS[1]]
    assert said["checkpoint"] == {"resume": True}
    assert "train" not in said


@pytest.mark.parametrize(("own", "expected"), [(None, 0.5), (0.9, 0.5), (0.3, None)])
def test_the_services_share_of_memory_is_the_most(own: float | None, expected: float | None, tmp_path: Path) -> None:
    settings: dict[str, Any] = {} if own is None else {"memory_fraction": own}
    for work in (
        Work("finetune", settings, model="m"),
        Work("train", {"hardware": settings} if settings else {}),
    ):
        [command] = commands_of(job_of(work), tmp_path, tmp_path, 0.5)
        said = [text for text in command.words if text.startswith("hardware.memory_fraction=")]
        values = [json.loads(text.partition("=")[2]) for text in said]
        assert (values[-1] if values else None) == (expected if expected is not None or work.kind == "train" else own)


def test_a_setting_that_nobody_knows_is_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        commands_of(job_of(Work("finetune", {"epoch": 2}, model="m")), tmp_path, tmp_path)
