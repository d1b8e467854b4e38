"""What a request for a prediction may say, and that it comes to the command as it was said."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from drumline.config.infer_file import load_inference_config
from drumline.config.inference import ChooseTask, InferenceConfig
from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError, DrumlineError, TooLarge
from drumline.jobs.commands import commands_of
from drumline.jobs.defaults import GPUConfig
from drumline.jobs.intake import Accepted, accept
from drumline.jobs.intake_predictions import RULES, prediction_fields
from drumline.jobs.records import Job, Resources
from drumline.jobs.requests import JobRequest
from tests.unit.jobs.intake_service import places, service_with_roots

GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    return service_with_roots(tmp_path)


def infer(service: ServiceConfig, defaults: GPUConfig | None = None, /, **says: Any) -> Accepted:
    request = JobRequest.model_validate({"kind": "infer", "model_name": "gpt2", "texts": ["a", "b"], **says})
    return accept(request, service, places(service), defaults, has_gpus=defaults is not None)


def asked_for(found: Accepted, folder: Path, devices: tuple[str, ...] = (GPU,)) -> InferenceConfig:
    """What the job's command would read its arguments as."""
    job = Job("job-2", "ann", found.work, Resources(), 0.0, devices=devices, attempt=1)
    [command] = commands_of(job, folder, folder / "cache", 0.5)
    assert command.step == "infer" and command.words[3:5] == ("drumline", "infer")
    words = command.words[5:]
    pairs = list(zip(words[::2], words[1::2], strict=True))

    def of(name: str) -> list[str]:
        return [value for option, value in pairs if option == name]

    assert {option for option, _ in pairs} == {"--config", "--model", "--data", "--out", "--set"}
    [settings], [model], [out] = of("--config"), of("--model"), of("--out")
    assert stat.S_IMODE(Path(settings).stat().st_mode) == 0o600
    values = {"model": {"path": model}, "rows": {"files": of("--data")}, "output": {"file": out}}
    return load_inference_config(settings, values, of("--set"))


def test_texts_are_answered_in_the_jobs_own_folder(config: ServiceConfig, tmp_path: Path) -> None:
    prompt = "Is this about \U0001f431?\n\x7f\u2028 {text}: \"yes\" or 'no'"
    task = {"kind": "choose", "prompt": {"prompt": prompt}, "labels": ["yes", "no", "1.10"]}
    found = infer(config, task=task, columns={"id": "key", "label": "truth"}, output="csv", settings={"seed": 3})
    assert found.rows == b'{"text": "a"}\n{"text": "b"}\n'
    assert (found.work.kind, found.work.export, found.work.output) == ("infer", False, "csv")
    assert found.resources.devices == "auto"
    folder = tmp_path / "job"
    folder.mkdir()
    read = asked_for(found, folder)
    assert (read.model.path, read.rows.files) == (str(tmp_path / "models/small"), [str(folder / "rows.jsonl")])
    assert read.rows.image_roots == []
    assert (read.output.file, read.run_dir) == (folder / "answers.csv", folder / "run")
    assert read.task.model_dump() == ChooseTask.model_validate(task).model_dump()
    assert (read.rows.id, read.rows.label, read.seed) == ("key", "truth", 3)
    assert (read.hardware.gpus, read.hardware.count, read.hardware.memory_fraction) == ([GPU], None, 0.5)
    json.dumps(found.work.settings)


def test_files_models_and_splits_are_as_for_a_fine_tuning(config: ServiceConfig, tmp_path: Path) -> None:
    settings = {"split": {"gpus": 2, "device_map": {"model.layers.0": 1}}, "batching": {"tokens": 512}, "rows.limit": 5}
    says = {"texts": None, "path": ["rows.jsonl"], "model_name": "HuggingFaceTB/SmolLM2-135M", "settings": settings}
    found = infer(config, GPUConfig(memory_fraction=0.4, use_multi_gpu=False), **says)
    read = asked_for(found, tmp_path, ("cpu:0", "cpu:1"))
    assert read.model.path == "HuggingFaceTB/SmolLM2-135M" and found.rows is None
    assert read.rows.files == [str(tmp_path / "data/rows.jsonl")] and read.rows.limit == 5
    assert read.rows.image_roots is not None and tmp_path / "data" in read.rows.image_roots
    assert Path("/") not in read.rows.image_roots
    assert read.split is not None and read.split.device_map == {"model.layers.0": 1}
    assert (read.batching.tokens, read.batching.window) == (512, 4096)
    assert (read.hardware.num_processes, read.hardware.gpus, read.hardware.memory_fraction) == (2, None, 0.4)
    assert found.resources.devices == 1
    with pytest.raises(ConfigError, match="not below"):
        infer(config, texts=None, path="/etc/passwd")
    with pytest.raises(ConfigError, match="no model"):
        infer(config, model_name="somebody/else")


def test_how_many_devices_settings_ask_for_is_the_jobs_to_get(config: ServiceConfig) -> None:
    for settings in ({"hardware": {"num_processes": 3}}, {"hardware.count": 3}):
        found = infer(config, settings=settings)
        assert found.resources.devices == 3 and "hardware" not in found.work.settings


def test_every_field_that_takes_text_is_decided_about() -> None:
    fields = prediction_fields()
    assert fields.free == set(RULES.treatments), "a new field that may name a file or a command needs a decision"
    assert RULES.ours <= fields.known and set(RULES.most) <= fields.known


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ({"settings": {"model.trust_remote_code": True}}, "runs code that comes with a model"),
        ({"settings": {"model": {"trust_remote_code": "true"}}}, "runs code"),
        ({"settings": {"model.path": "/etc"}}, "model.path"),
        ({"settings": {"model.token_variable": "AWS_SECRET_ACCESS_KEY"}}, "model.token_variable"),
        ({"settings": {"model.cache_dir": "/tmp/x"}}, "model.cache_dir"),
        ({"settings": {"output.file": "/tmp/x.jsonl"}}, "output.file"),
        ({"settings": {"rows": {"files": ["/etc/passwd"]}}}, "rows.files"),
        ({"settings": {"rows.image_roots": ["/"]}}, "rows.image_roots"),
        ({"settings": {"output.prefix": "p" * 65}}, "output.prefix"),
        ({"settings": {"run_dir": "/tmp/x"}}, "run_dir"),
        ({"settings": {"hardware.gpus": "all"}}, "no number of devices"),
        ({"settings": {"hardware.exclude": ["0"]}}, "hardware.exclude"),
        ({"settings": {"hardware.device": "cuda"}}, "run on cpu"),
        ({"settings": {"batching.window": 10**9}}, "is the most"),
        ({"settings": {"batching.tokens": "many"}}, "batching.tokens"),
        ({"settings": {"no.such": 1}}, "no setting"),
        ({"settings": {"seed": 1, "seed.x": 2}}, "no section"),
        ({"settings": {"task": {"kind": "embed"}}}, "stands in task"),
        ({"task": {"kind": "function"}}, "function"),
        ({"task": {"kind": "embed", "labels": ["a"]}}, "labels"),
        ({"task": {"kind": "generate", "prompt": {"strategy": "/etc/passwd"}}}, "not below"),
        ({"task": {"kind": "generate", "prompt": {"template": "../secret/rows.jsonl"}}}, "not below"),
        ({"task": {"kind": "generate", "max_new_tokens": 0}}, "max_new_tokens"),
        ({"columns": {"path": "text"}}, "columns has no name"),
        ({"max_length": 5}, "task.context"),
        ({"parallel": "distributed"}, "go with kind finetune"),
        ({"config": {}}, "config goes with kind train"),
        ({"texts": None}, "a prediction takes its rows from texts or from path"),
        ({"path": "rows.jsonl"}, "a prediction takes its rows from texts or from path"),
        ({"model_name": None}, "model_name is missing"),
        ({"texts": []}, "texts is empty"),
    ],
)
def test_what_a_request_may_not_say(config: ServiceConfig, says: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        infer(config, **says)
    assert problem in str(refused.value)


def test_what_is_of_another_kind_is_told(config: ServiceConfig) -> None:
    for kind, extra in (("finetune", {"task": {"kind": "embed"}}), ("finetune", {"output": "csv"})):
        with pytest.raises(ConfigError, match="go with kind infer"):
            infer(config, kind=kind, **extra)


def test_a_prompt_may_be_long_but_not_endless(config: ServiceConfig, tmp_path: Path) -> None:
    long = {"kind": "generate", "prompt": {"prompt": "x" * 200_000}}
    assert asked_for(infer(config, task=long), tmp_path).task.model_dump()["prompt"]["prompt"] == "x" * 200_000
    with pytest.raises(TooLarge):
        infer(config, task={"kind": "generate", "prompt": {"prompt": "x" * 2_000_000}})
    with pytest.raises(DrumlineError):
        infer(config, task={"kind": "generate", "stop": ["\ud800"]})


def test_a_path_that_is_a_link_by_now_is_not_read(config: ServiceConfig, tmp_path: Path) -> None:
    strategy = tmp_path / "data/ask.yaml"
    strategy.write_text("prompt: '{text}?'\n")
    found = infer(config, task={"kind": "generate", "prompt": {"strategy": "ask.yaml"}})
    assert found.work.settings["task"]["prompt"]["strategy"] == str(strategy)
    asked_for(found, tmp_path)
    strategy.unlink()
    strategy.symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="leads elsewhere"):
        asked_for(found, tmp_path)


def test_nothing_said_is_nothing_set(config: ServiceConfig) -> None:
    assert infer(config).work.settings == {}
    assert asked_for(infer(config), config.data_dir).batching.tokens == "auto"


@pytest.mark.parametrize(
    ("name", "content"), [("preprocessor_config.json", "{}"), ("config.json", '{"image_size": 8}')]
)
def test_texts_name_no_images_of_this_machine(config: ServiceConfig, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "models/small" / name).write_text(content)
    with pytest.raises(ConfigError, match="takes images"):
        infer(config, texts=["/home/ann/photo.png"], task={"kind": "classify"})
    assert infer(config, texts=None, path="rows.jsonl", task={"kind": "classify"}).work.data


@pytest.mark.parametrize("labels", [[f"label {number}" for number in range(1001)], ["a", "b" * 201]])
def test_a_choice_has_a_bounded_number_of_labels(config: ServiceConfig, labels: list[str]) -> None:
    with pytest.raises(TooLarge, match=r"task\.labels"):
        infer(config, task={"kind": "choose", "prompt": {"prompt": "{text}"}, "labels": labels})
