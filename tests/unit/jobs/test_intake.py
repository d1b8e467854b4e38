"""What a request may say: settings, files, models, sizes; and that nothing else comes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline.config.load import config_from_mapping
from drumline.config.schema import RunConfig
from drumline.config.section import Section
from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError, DrumlineError, TooLarge
from drumline.jobs.defaults import GPUConfig
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.intake import Accepted, accept, rows_of
from drumline.jobs.intake_fields import MOST, OURS, TREATMENTS, Fields
from drumline.jobs.intake_settings import bounded
from drumline.jobs.requests import JobRequest, ResourcesRequest
from tests.unit.jobs.intake_service import places, service_with_roots


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    return service_with_roots(tmp_path)


def taken(
    service: ServiceConfig, defaults: GPUConfig | None = None, /, *, has_gpus: bool = False, **says: Any
) -> Accepted:
    request = JobRequest.model_validate(says)
    return accept(request, service, places(service), defaults, has_gpus=has_gpus)


def finetune(service: ServiceConfig, /, **says: Any) -> Accepted:
    return taken(service, **{"model_name": "gpt2", "texts": ["a", "b"], **says})


def train(service: ServiceConfig, /, **says: Any) -> Accepted:
    whole: dict[str, Any] = {
        "data": {"kind": "random_tokens", "num_rows": 8, "vocab_size": 64, "context": 16},
        "train": {"global_batch": 4, "max_steps": 2},
    }
    for name, value in says.items():
        whole[name] = {**whole.get(name, {}), **value} if isinstance(value, dict) else value
    return taken(service, kind="train", config=whole)


def test_a_fine_tuning_as_the_ads_service_asks_for_it(config: ServiceConfig, tmp_path: Path) -> None:
    found = finetune(config, max_length=512, settings={"epochs": 3, "learning_rate": 5e-5})
    assert found.work.model == str(tmp_path / "models" / "small") and found.work.model_name == "gpt2"
    assert found.work.settings == {"data.context": 512, "train.epochs": 3, "train.lr": 5e-5}
    assert found.rows == b'{"text": "a"}\n{"text": "b"}\n'
    assert found.work.data == () and found.work.export and found.resources.devices == "auto"


def test_a_run_keeps_its_settings(config: ServiceConfig) -> None:
    found = train(config, hardware={"num_processes": 2, "device": "cpu"}, seed=7)
    assert found.resources.devices == 2 and not found.work.export
    assert found.work.settings["seed"] == 7
    assert not found.work.settings.get("hardware"), "how many and which is the service's to say"
    config_from_mapping(found.work.settings, "the work")


# What names something outside of a run


def test_every_field_that_takes_text_is_decided_about() -> None:
    fields = Fields()
    assert fields.free == set(TREATMENTS), "a new field that may name a file, a command or an address needs a decision"
    assert set(OURS) <= fields.known and set(MOST) <= fields.known
    ends = ("_env", "_variable", ".file", "_dir", ".host")
    names = {name for name in fields.known if name.endswith(ends)}
    assert names and all(TREATMENTS[name] in ("never", "ours") for name in names)


def test_a_field_that_nobody_has_decided_about_is_refused() -> None:
    class Hook(Section):
        command: str = ""
        paths: dict[str, list[Path]] | None = None
        times: int = 0

    class Root(Section):
        hook: Hook = Hook()
        hooks: list[Hook] | None = None
        anything: Any = None

    fields = Fields(Root)
    assert (
        fields.treatment("hook.command") == fields.treatment("hooks.paths") == fields.treatment("anything") == "never"
    )
    assert fields.treatment("hook.times") is None


def outside_values() -> dict[str, Any]:
    return {
        "run_dir": "/tmp/elsewhere",
        "model.cache_dir": "/tmp/elsewhere",
        "model.token_variable": "AWS_SECRET_ACCESS_KEY",
        "model.file": "/tmp/model.py",
        "data.cache_dir": "/tmp/elsewhere",
        "hardware.gpus": ["0"],
        "hardware.exclude": ["0"],
        "monitor.alerts.webhook_env": "HOME",
        "monitor.alerts.email.host": "mail.example",
        "monitor.alerts.email.username": "me",
        "monitor.alerts.email.password_env": "HOME",
        "monitor.alerts.email.sender": "me@mail.example",
        "monitor.alerts.email.recipients": ["me@mail.example"],
        "monitor.alerts.file": "/tmp/elsewhere",
    }


def test_each_of_those_is_tried_below() -> None:
    assert set(outside_values()) == {name for name, how in TREATMENTS.items() if how in ("ours", "never")}


@pytest.mark.parametrize("name", [name for name in outside_values() if name != "hardware.gpus"])
def test_no_request_says_what_lies_outside(config: ServiceConfig, name: str) -> None:
    value = outside_values()[name]
    with pytest.raises(ConfigError) as refused:
        finetune(config, settings={name: value})
    assert name in refused.value.problem
    nested: Any = value
    for part in reversed(name.split(".")):
        nested = {part: nested}
    with pytest.raises(ConfigError):
        train(config, **nested)


@pytest.mark.parametrize("name", [name for name, how in TREATMENTS.items() if how in ("data", "weights", "template")])
@pytest.mark.parametrize("path", ["/etc/passwd", "../secret/rows.jsonl", "deep/../../secret/rows.jsonl"])
def test_no_setting_reads_a_file_elsewhere(config: ServiceConfig, name: str, path: str) -> None:
    if name in ("data.train", "data.train.paths", "data.path"):
        with pytest.raises(ConfigError, match="not below a folder"):
            places(config).data(path, name)
        return
    with pytest.raises(ConfigError, match="not below a folder"):
        finetune(config, settings={name: [path] if name == "data.eval" else path})


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        ("model", {"kind": "python", "file": "recipes:any.py"}, "which no request may"),
        ("model", {"kind": "huggingface", "path": "gpt2", "trust_remote_code": True}, "which no request may"),
        ("model", {"kind": "huggingface", "path": "/etc"}, "no model"),
        ("model", {"kind": "huggingface", "path": "gpt2", "adapter": {"initial": "/etc"}}, "not below"),
        ("data", {"kind": "text", "train": ["/etc/passwd"]}, "not below"),
        ("data", {"kind": "records", "train": [{"paths": ["/etc/*"]}]}, "not below"),
        ("data", {"kind": "datasets", "path": "somebody/data"}, "there is no"),
        ("data", {"kind": "text", "train": ["rows.jsonl"], "tokenizer": "somebody/model"}, "no model"),
        ("checkpoint", {"initial": "/elsewhere/weights.pt"}, "not below"),
        ("checkpoint", {"resume": False}, "goes on where"),
        ("hardware", {"sick": "use"}, "the service chooses"),
        ("hardware", {"device": "cuda"}, "run on cpu"),
        ("faults", {"stop_signals": ["SIGUSR1"]}, "no SIGTERM"),
        ("train", {"max_time_s": 10.0}, "time_limit_s"),
        ("loader", {"num_workers": 100_000}, "the most"),
        ("monitor", {"alerts": {"rules": [{"name": "x", "metric": "idle", "command": "rm"}]}}, "command"),
    ],
)
def test_a_run_that_reaches_out_is_refused(config: ServiceConfig, section: str, values: Any, says: str) -> None:
    whole = {section: values}
    if section == "data":
        whole |= {"model": {"kind": "decoder"}}
    with pytest.raises(ConfigError, match=says):
        taken(
            config,
            kind="train",
            config={
                "data": {"kind": "random_tokens", "vocab_size": 64, "context": 16},
                "train": {"global_batch": 4, "max_steps": 2},
                **whole,
                **({"train": {"global_batch": 4, "max_steps": 2, **values}} if section == "train" else {}),
            },
        )


@pytest.mark.parametrize(
    "name",
    [
        "model.path",
        "model.kind",
        "data.train",
        "data.kind",
        "model",
        "train.lr=1,model.trust_remote_code",
        "a b",
        "os.x",
    ],
)
def test_settings_do_not_change_what_is_chosen_nor_smuggle(config: ServiceConfig, name: str) -> None:
    with pytest.raises(ConfigError):
        finetune(config, settings={name: {"kind": "python", "file": "/x.py"} if name == "model" else "text"})


def test_settings_come_out_as_the_command_reads_them(config: ServiceConfig) -> None:
    found = finetune(config, settings={"model.adapter": {"kind": "lora", "rank": 4}, "parallel": {"kind": "single"}})
    assert as_overrides(found.work.settings) == [
        'model.adapter={"kind": "lora", "rank": 4}',
        'parallel={"kind": "single"}',
    ]
    assert found.resources.devices == 1, "one process has no use for more"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epochs": -3}, "train.epochs"),
        ({"epochs": 1e300}, "train.epochs"),
        ({"learning_rate": float("nan")}, "a number that is none"),
        ({"batch_size": 10**400}, "beyond"),
        ({"batch_size": 8, "batch_size_per_gpu": 8}, "two ways"),
        ({"epoch": 3}, "did you mean epochs"),
        ({"train": {"optimizer": {"name": "sgd", "nonsense": 1}}}, "nonsense"),
        ({"name": "\ud800"}, "half a character"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_at_the_door(config: ServiceConfig, settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        finetune(config, settings=settings)


def test_what_is_endless_or_too_deep_is_too_large(config: ServiceConfig) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"train": deep}
    for value in (deep, {"train.lr": [0] * 200_000}, {"name": "x" * 2_000_000}, ["x" * 1000] * 2000):
        with pytest.raises(TooLarge):
            bounded(value, "settings")


# Data sets of the package datasets


def data_set(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def data_sets(service: ServiceConfig, folder: str) -> Accepted:
    data = {"kind": "datasets", "path": folder}
    model = {"kind": "huggingface", "path": "gpt2"}
    return taken(
        service, kind="train", config={"data": data, "model": model, "train": {"global_batch": 4, "max_steps": 2}}
    )


STATE = json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README.md": "\n---\nconfigs:\n- config_name: x\n  data_files: /etc/passwd\n---\n"}, "a card"),
        ({"README.md": " " * (1 << 17) + "\n---\nconfigs: []\n---\n"}, "a card"),
        ({".huggingface.yaml": "configs: []"}, "a card"),
        ({"set.py": "import os"}, "which might be run"),
        ({"state.json": '{"_data_files": [{"filename": "../../secret/rows.arrow"}]}'}, "do not lie beside it"),
        ({"state.json": '{"_data_files": [{"filename": "/etc/x.arrow"}]}'}, "do not lie beside it"),
        ({"dataset_dict.json": '{"splits": [".."]}', "state.json": STATE}, "do not lie beside it"),
        ({"dataset_dict.json": '{"splits": ["train"]}', "train/state.json": "[]"}, "not as save_to_disk"),
        ({"dataset_dict.json": '{"splits": ["train"]}', "state.json": STATE}, "not as save_to_disk"),
    ],
)
def test_a_data_set_that_would_read_elsewhere_is_refused(
    config: ServiceConfig, tmp_path: Path, files: dict[str, str], says: str
) -> None:
    folder = data_set(tmp_path / "data" / "set", {"rows.jsonl": "{}", **files})
    with pytest.raises(ConfigError, match=says):
        data_sets(config, folder)
    if "state.json" in str(files):  # which a fine-tuning opens in the same way
        with pytest.raises(ConfigError, match=says):
            finetune(config, texts=None, path="set")


@pytest.mark.parametrize(
    "files",
    [
        {"rows.jsonl": "{}", "README.md": "# Rows\n\n--- by hand ---\n"},
        {"state.json": STATE, "README.md": "---\nconfigs: []\n---\n"},
        {"dataset_dict.json": '{"splits": ["train"]}', "train/state.json": STATE},
    ],
)
def test_a_data_set_that_lies_in_its_folder_is_taken(
    config: ServiceConfig, tmp_path: Path, files: dict[str, str]
) -> None:
    folder = data_set(tmp_path / "data" / "set", files)
    assert data_sets(config, folder).work.settings["data"]["path"] == folder


# Rows


def test_rows_of_a_request_may_be_files(config: ServiceConfig, tmp_path: Path) -> None:
    found = finetune(config, texts=None, path=["rows.jsonl", "rows.jsonl"])
    assert found.work.data == (str(tmp_path / "data" / "rows.jsonl"),) and found.rows is None


def test_rows_become_lines(config: ServiceConfig) -> None:
    rows = rows_of(["ü\n", {"prompt": "a", "completion": "b"}], config)
    assert [json.loads(line) for line in rows.splitlines()] == [{"text": "ü\n"}, {"prompt": "a", "completion": "b"}]


@pytest.mark.parametrize("texts", [[], [{}], ["\ud800"], [{"text": float("inf")}], ["a"] * 4, ["a" * 7000]])
def test_rows_that_are_none_or_too_many_are_refused(config: ServiceConfig, texts: list[Any]) -> None:
    with pytest.raises(DrumlineError) as refused:
        rows_of(texts, config)
    assert isinstance(refused.value, ConfigError | TooLarge)


# What goes with what


@pytest.mark.parametrize(
    "says",
    [
        {"model_name": None},
        {"texts": None},
        {"path": "rows.jsonl"},
        {"texts": None, "path": []},
        {"config": {}},
        {"kind": "train"},
        {"kind": "train", "config": {}},
        {"resources": {"min_devices": 2}},
        {"resources": {"min_devices": 4, "max_devices": 2}},
        {"resources": {"devices": 8, "min_devices": 1, "max_devices": 2}},
        {"resources": {"min_devices": 1, "max_devices": 2}, "settings": {"batch_size_per_gpu": 8}},
    ],
)
def test_requests_that_contradict_themselves_are_refused(config: ServiceConfig, says: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        finetune(config, **says)


def test_resources_count_before_settings_and_these_before_defaults(config: ServiceConfig) -> None:
    one = GPUConfig(use_multi_gpu=False)
    base: dict[str, Any] = {"model_name": "gpt2", "texts": ["a"]}
    assert taken(config, one, **base).resources.devices == 1
    found = taken(config, one, **base, settings={"gpu_ids": [0, 1]})
    assert found.resources.devices == 2 and found.notes and "hardware.gpus" not in found.work.settings
    assert taken(config, one, **base, resources={"devices": 3}, settings={"gpu_ids": [0]}).resources.devices == 3


def test_defaults_fill_what_is_not_said(config: ServiceConfig) -> None:
    defaults = GPUConfig(batch_size_per_gpu=4, mixed_precision=False, distributed_training=True)
    base: dict[str, Any] = {"model_name": "gpt2", "texts": ["a"]}
    found = taken(config, defaults, has_gpus=True, **base, settings={"memory_fraction": 0.5})
    assert found.work.settings["train.batch_size_per_gpu"] == 4 and found.work.settings["train.precision"] == "fp32"
    assert found.work.settings["hardware.memory_fraction"] == 0.5 and found.work.parallel == "distributed"
    elastic = taken(config, defaults, **base, resources=ResourcesRequest(min_devices=1, max_devices=2).model_dump())
    assert "train.batch_size_per_gpu" not in elastic.work.settings
    whole = {
        "data": {"kind": "random_tokens", "vocab_size": 64, "context": 16},
        "train": {"global_batch": 4, "max_steps": 2},
    }
    run = taken(config, defaults, kind="train", config=whole)
    assert run.work.settings["train"] == {"global_batch": 4, "max_steps": 2, "precision": "fp32"}


def test_a_whole_config_as_a_run_wrote_it_is_taken_but_for_where_it_lay(config: ServiceConfig) -> None:
    whole = config_from_mapping(
        {
            "data": {"kind": "random_tokens", "vocab_size": 64, "context": 16},
            "train": {"global_batch": 4, "max_steps": 2},
        },
        "a run",
    ).model_dump(mode="json")
    assert taken(config, kind="train", config=whole).work.settings["train"]["max_steps"] == 2
    with pytest.raises(ConfigError, match="run_dir"):
        taken(config, kind="train", config={**whole, "run_dir": "/tmp/elsewhere"})
    assert RunConfig.model_validate(whole).run_dir is None
