"""A model in a folder becomes its task's predictor: in its type, with its adapter, never with silent random weights."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from drumline.errors import ConfigError, DrumlineError, MissingExtra
from drumline.infer import model_folder
from drumline.infer.loading import WORKER, LoadedModel, devices_of, load_model_for, make_predictor, predictor_of
from drumline.infer.model_folder import dtype_of, free_share, no_room, places_of
from drumline.infer.padding_masks import MaskedBody
from drumline.infer.tries import WorkerLost
from tests.tiny_models import save_bert, save_llama
from tests.unit.infer.tiny_encoders import CPU, answers, config_for, save_encoder, texts

# What peft asks of a model, and transformers calls otherwise from version 6 on.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")

EMBED: dict[str, Any] = {"kind": "embed"}
CLASSIFY: dict[str, Any] = {"kind": "classify"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"), initializer_range=0.3)


def loaded(folder: Path, task: dict[str, Any], **sections: Any) -> Any:
    return load_model_for(config_for(folder, task, **sections), CPU)


def test_a_model_is_ready_to_answer_and_in_the_type_that_is_asked_for(bert: Path) -> None:
    found = loaded(bert, EMBED)
    assert found.model.dtype == torch.float32
    assert not found.model.training
    assert not any(p.requires_grad for p in found.model.parameters())
    assert loaded(bert, EMBED, model={"dtype": "bfloat16"}).model.dtype == torch.bfloat16
    assert dtype_of(config_for(bert, EMBED, model={"quantise": "int8"}), CPU) == torch.float16


def test_random_weights_depend_on_the_seed_alone_and_leave_the_stream(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((bert / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((bert / "tokenizer.json").read_bytes())
    state = torch.get_rng_state()
    models = [loaded(tmp_path, EMBED, model={"random_weights": True}, seed=seed).model for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), state)
    first, same, other = (next(model.parameters()) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_only_a_folders_own_weights_are_said_to_lie_in_it(llama: Path) -> None:
    assert loaded(llama, {"kind": "generate"}).weights == llama
    assert loaded(llama, {"kind": "generate"}, model={"random_weights": True}).weights is None


def test_a_classifier_that_nobody_trained_is_refused(bert: Path) -> None:
    with pytest.raises(ConfigError, match="lacks 2 of the classifier's weights"):
        make_predictor(config_for(bert, CLASSIFY), CPU)


def test_weights_in_a_pickle_are_not_read(tmp_path: Path) -> None:
    save_bert(tmp_path)
    state = transformers.BertModel.from_pretrained(tmp_path).state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="could not be loaded as embedding"):
        make_predictor(config_for(tmp_path, EMBED), CPU)


def test_code_of_the_models_own_is_refused(bert: Path, tmp_path: Path) -> None:
    shape = {"model_type": "strange", "auto_map": {"AutoModel": "strange.Strange"}}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    with pytest.raises(ConfigError, match="comes with code of its own"):
        make_predictor(config_for(tmp_path, EMBED), CPU)


def test_a_run_directory_and_its_step_belong_elsewhere(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: run\n")
    with pytest.raises(ConfigError, match="is a run directory"):
        make_predictor(config_for(tmp_path, EMBED), CPU)
    with pytest.raises(ConfigError, match=r"model\.step is set"):
        make_predictor(config_for(bert, EMBED, model={"step": 3}), CPU)


def test_a_package_that_is_absent_is_named(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "bitsandbytes" else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    with pytest.raises(MissingExtra) as caught:
        make_predictor(config_for(bert, EMBED, model={"quantise": "nf4"}), CPU)
    assert caught.value.args == ("bitsandbytes", "quantise")


@pytest.mark.parametrize("kind", ["embed", "classify"])
def test_an_adapters_folder_brings_its_model_and_its_classifier(llama: Path, tmp_path: Path, kind: str) -> None:
    import peft

    torch.manual_seed(1)
    whole = kind == "classify"
    auto = transformers.AutoModelForSequenceClassification if whole else transformers.AutoModel
    base: Any = auto.from_pretrained(llama, **({"num_labels": 3} if whole else {}))
    settings = peft.LoraConfig(
        target_modules=["q_proj"], init_lora_weights=False, modules_to_save=["score"] if whole else None
    )
    model = peft.get_peft_model(base, settings).eval()
    model.save_pretrained(tmp_path)
    predictor = make_predictor(config_for(tmp_path, {"kind": kind}), CPU)
    rows = texts(3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        ids = tokenizer(row.values["text"], return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            output = model(input_ids=ids)
        if whole:
            assert list(answer["probabilities"].values()) == pytest.approx(output.logits[0].softmax(-1), abs=1e-5)
        else:
            vector = nn.functional.normalize(output.last_hidden_state[0].mean(0), dim=0)
            assert torch.tensor(answer["embedding"]) == pytest.approx(vector, abs=1e-5)


def test_what_writes_ends_where_model_tokenizer_and_chat_end(llama: Path) -> None:
    task = {"kind": "generate", "prompt": {"prompt": "Say {text}"}, "max_new_tokens": 3}
    predictor: Any = make_predictor(config_for(llama, task), CPU)
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    ends = {tokenizer.convert_tokens_to_ids(name) for name in ("<|endoftext|>", "<|im_end|>")}
    assert set(predictor._endings.ends) == ends
    assert [set(answer) for answer in answers(predictor, texts(2))] == [{"answer", "finish", "new_tokens"}] * 2


@pytest.mark.parametrize(
    "task", [{"kind": "choose", "labels": ["a", "b"], "prompt": {"prompt": "{text}?"}}, {"kind": "score"}]
)
def test_causal_models_choose_and_score(llama: Path, task: dict[str, Any]) -> None:
    predictor = make_predictor(config_for(llama, task), CPU)
    for answer in answers(predictor, texts(3)):
        assert tuple(answer) == predictor.columns


def test_a_model_in_memory_is_asked_without_its_head(llama: Path) -> None:
    whole: Any = transformers.AutoModelForCausalLM.from_pretrained(llama).eval()
    config = config_for(llama, {"kind": "embed", "pooling": "last"})
    given = predictor_of(LoadedModel(whole, loaded(llama, EMBED).tokenizer), config, CPU)
    rows = texts(3)
    assert answers(given, rows) == answers(make_predictor(config, CPU), rows)


def test_a_model_of_which_nothing_is_known_is_refused(bert: Path) -> None:
    tokenizer = loaded(bert, EMBED).tokenizer
    for task in (EMBED, CLASSIFY):
        with pytest.raises(ConfigError, match="a Linear is no transformers model"):
            predictor_of(LoadedModel(nn.Linear(1, 1), tokenizer), config_for(bert, task), CPU)
    with pytest.raises(ConfigError, match="reads no text"):
        predictor_of(LoadedModel(nn.Linear(1, 1)), config_for(bert, EMBED), CPU)


def test_an_absent_folder_and_an_adapter_of_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not say which model it belongs to"):
        places_of(config_for(tmp_path, EMBED).model)
    with pytest.raises(DrumlineError):
        places_of(config_for(tmp_path / "none", EMBED).model)


def test_a_split_model_takes_the_devices_after_its_first(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    first = torch.device("cuda", 2)
    assert [d.index for d in devices_of(config_for(bert, EMBED, split={"gpus": 2}), first)] == [2, 3]
    assert [d.index for d in devices_of(config_for(bert, EMBED, split={}), first)] == [2, 3, 4, 5, 6, 7]
    assert devices_of(config_for(bert, EMBED, split={}), CPU) == [CPU]


def test_processes_of_one_machine_share_its_devices(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    world = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**world, "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    second = torch.device("cuda", 2)
    assert [d.index for d in devices_of(config_for(bert, EMBED, split={}), second)] == [2, 3]
    assert [d.index for d in devices_of(config_for(bert, EMBED, split={"gpus": 1}), second)] == [2]
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", WORKER, "run"])
    assert [d.index for d in devices_of(config_for(bert, EMBED, split={}), second)] == [2, 3, 4, 5, 6, 7]


def test_an_encoder_saved_with_classes_is_embedded_without_them(tmp_path: Path) -> None:
    save_encoder(tmp_path, transformers.BertForSequenceClassification, ("a", "b"))
    predictor: Any = make_predictor(config_for(tmp_path, EMBED), CPU)
    assert isinstance(predictor._body, MaskedBody)
    assert len(answers(predictor, texts(2))[0]["embedding"]) == 32


def test_no_room_is_the_settings_fault_only_on_a_free_gpu(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    for free, kind in ((95, ConfigError), (40, WorkerLost)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 100))
        assert isinstance(no_room(config_for(bert, EMBED), gpu, free_share(gpu)), kind)
    assert free_share(CPU) == 1.0


@pytest.mark.parametrize(
    ("message", "kind"), [("CUDA error: uncorrectable ECC error", RuntimeError), ("x", ConfigError)]
)
def test_a_sick_gpu_is_nobodys_bad_request(
    bert: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: type[Exception]
) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(model_folder, "made", fail)
    with pytest.raises(kind):
        loaded(bert, EMBED)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_weights_in_fewer_bits_answer_much_alike_also_with_an_adapter(tmp_path: Path, kind: str) -> None:
    import peft

    folder = save_llama(tmp_path / "base", hidden_size=64, intermediate_size=128, initializer_range=0.3)
    torch.manual_seed(1)
    settings = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    base = transformers.AutoModel.from_pretrained(folder)
    peft.get_peft_model(base, settings).save_pretrained(tmp_path / "adapter")
    found = {}
    for place in (folder, tmp_path / "adapter"):
        whole = answers(make_predictor(config_for(place, EMBED), CPU), texts(3))
        predictor: Any = make_predictor(config_for(place, EMBED, model={"quantise": kind}), CPU)
        names = {type(module).__name__ for module in predictor._body._model.modules()}
        assert {"nf4": "Linear4bit", "int8": "Linear8bitLt"}[kind] in names
        packed = answers(predictor, texts(3))
        for mine, exact in zip(packed, whole, strict=True):
            assert torch.tensor(mine["embedding"]) @ torch.tensor(exact["embedding"]) > 0.9
        found[place.name] = packed
    assert found["base"] != found["adapter"]
