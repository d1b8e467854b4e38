"""Every number of a fine-tuning run, chosen from model, data and machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.config.finetuning import Choice, DataSeen, Machine, ModelSeen, choose
from drumline.config.finetuning_task import ColumnSeen, TaskFound
from drumline.config.load import config_from_mapping, read_overrides
from drumline.config.schema import RunConfig

GIB = 1 << 30
MODEL = ModelSeen("models/llama", "causal", 1_200_000_000, 8192)
DATA = DataSeen("records", ("a.jsonl",), {"text": ColumnSeen(("text",))}, 10_000, 120, 700, 1_500_000, 2000)
TEXT = TaskFound("language_modelling", ("text",), "the rows have text: plain texts", {}, "text")
LABELLED = TaskFound("classification", ("body",), "the rows have body with topic", {"text": "body", "label": "topic"})
GPUS = Machine(2, 80 * GIB, True)
CPU = Machine(1, 64 * GIB, False)


def chosen(
    *overrides: str,
    model: ModelSeen = MODEL,
    data: DataSeen = DATA,
    found: TaskFound = TEXT,
    machine: Machine = GPUS,
    held_out: tuple[str, ...] = (),
) -> tuple[RunConfig, Choice]:
    """The config that a choice comes to, with what somebody said."""
    choice = choose(model, data, found, machine, read_overrides(overrides), held_out)
    return config_from_mapping(choice.values, "drumline finetune", overrides), choice


def value(config: RunConfig, name: str) -> Any:
    """The setting at a dotted name."""
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_a_usual_case() -> None:
    config, _ = chosen()
    settings = {
        "model.path": "models/llama",
        "model.adapter": None,
        "task.kind": "language_modelling",
        "data.train": ["a.jsonl"],
        "data.row_format": "text",
        "data.eval_fraction": 0.05,
        "data.context": 1024,
        "train.epochs": 3,
        "train.global_batch": 16,
        "train.lr": 2e-5,
        "train.schedule.warmup_steps": 14,
        "train.compile": "auto",
        "evaluate.at_start": True,
    }
    assert {name: value(config, name) for name in settings} == settings


@pytest.mark.parametrize("found", [TEXT, LABELLED])
@pytest.mark.parametrize("machine", [GPUS, CPU, Machine(1, None, True)])
@pytest.mark.parametrize("kind", ["records", "datasets", "text_folders"])
def test_each_choice_is_a_config_and_each_reason_names_a_setting(found: TaskFound, machine: Machine, kind: str) -> None:
    config, choice = chosen(found=found, machine=machine, data=replace(DATA, kind=kind))
    for name in choice.reasons:
        value(config, name)


def test_each_setting_that_was_chosen_has_a_reason_and_none_that_was_said_has() -> None:
    overrides = ["train.lr=0.001", "data.context=128", "model.adapter=null"]
    config, choice = chosen(*overrides)
    assert (config.train.lr, value(config, "data.context")) == (0.001, 128)
    assert not {"train.lr", "data.context", "model.adapter"} & set(choice.reasons)
    assert all(choice.reasons.values())


def test_files_of_columns_with_other_names_are_read_by_the_tasks_names() -> None:
    config, choice = chosen(found=LABELLED, model=ModelSeen("bert", "encoder", 22_000_000, 512))
    assert value(config, "data.columns") == {"text": "body", "label": "topic"}
    assert "body as text, topic as label" in choice.reasons["data.columns"]
    assert (config.train.lr, value(config, "data.context")) == (1e-4, 512)


@pytest.mark.parametrize(
    ("longest", "limit", "task", "context"),
    [
        (700, 8192, TEXT, 1024),
        (20, 8192, TEXT, 256),
        (9000, 8192, TEXT, 2048),
        (9000, 1024, TEXT, 1024),
        (20, 512, LABELLED, 32),
        (100, 512, LABELLED, 128),
        (3000, 512, LABELLED, 512),
        (100, 64, LABELLED, 64),
    ],
)
def test_context_holds_the_longest_row_seen_and_what_the_model_takes(
    longest: int, limit: int, task: TaskFound, context: int
) -> None:
    data, model = replace(DATA, longest_tokens=longest), replace(MODEL, longest=limit)
    config, choice = chosen(data=data, model=model, found=task)
    assert value(config, "data.context") == context
    assert ("what is longer is cut" in choice.reasons["data.context"]) == (longest > context)


def test_held_out_rows_that_are_named_are_taken() -> None:
    config, _ = chosen(held_out=("b.jsonl",))
    assert (value(config, "data.eval"), value(config, "data.eval_fraction")) == (["b.jsonl"], 0.0)
    config, choice = chosen('data.eval=["c.jsonl"]')
    assert (value(config, "data.eval"), value(config, "data.eval_fraction")) == (["c.jsonl"], 0.0)
    saved = replace(DATA, kind="datasets", source=("saved",), eval_split="validation")
    config, choice = chosen(data=saved)
    assert (value(config, "data.path"), value(config, "data.eval_split")) == ("saved", "validation")
    assert "data.eval_fraction" not in choice.reasons
    config, _ = chosen(data=saved, held_out=("test",))
    assert value(config, "data.eval_split") == "test"


@pytest.mark.parametrize(
    ("parameters", "machine", "adapter", "weights", "quantise"),
    [
        (1_200_000_000, GPUS, False, "float32", "none"),  # 20 GiB of 160
        (8_000_000_000, GPUS, True, "bfloat16", "none"),  # 134 GiB do not leave room
        (8_000_000_000, Machine(8, 80 * GIB, True), False, "float32", "none"),
        (8_000_000_000, Machine(1, 16 * GIB, True), True, "bfloat16", "nf4"),
        (8_000_000_000, CPU, True, "float32", "none"),
        (8_000_000_000, Machine(1, None, True), False, "float32", "none"),
    ],
)
def test_an_adapter_where_the_whole_does_not_fit(
    parameters: int, machine: Machine, adapter: bool, weights: str, quantise: str
) -> None:
    config, choice = chosen(model=replace(MODEL, num_parameters=parameters), machine=machine)
    model: Any = config.model
    assert ((model.adapter is not None), model.weights, model.quantise) == (adapter, weights, quantise)
    assert "model.adapter" in choice.reasons
    assert config.train.lr == (2e-4 if adapter else 2e-5)


@pytest.mark.parametrize(("kind", "adapter"), [("data_parallel", True), ("ddp", True), ("fsdp", False)])
def test_each_gpu_has_room_for_the_whole_where_the_kind_keeps_it_so(kind: str, adapter: bool) -> None:
    large = replace(MODEL, num_parameters=8_000_000_000)
    config, _ = chosen(f"parallel.kind={kind}", model=large, machine=Machine(8, 80 * GIB, True))
    assert (value(config, "model.adapter") is not None) == adapter


def test_quantised_weights_that_somebody_asks_for_get_an_adapter() -> None:
    config, choice = chosen("model.quantise=nf4")
    assert value(config, "model.adapter").kind == "lora"
    assert "quantised" in choice.reasons["model.adapter"]


def test_an_adapter_that_somebody_asks_for_brings_what_belongs_to_it() -> None:
    config, _ = chosen("model.adapter.rank=4")
    model: Any = config.model
    assert (model.adapter.rank, model.weights, config.train.lr) == (4, "bfloat16", 2e-4)


def test_nothing_for_gpus_is_chosen_on_the_cpu() -> None:
    config, _ = chosen(machine=CPU)
    assert (config.train.compile, config.train.checkpointing.kind) == ("none", "none")


@pytest.mark.parametrize(
    ("rows", "tokens", "found", "batch", "epochs"),
    [
        (60, 3_000, TEXT, 4, 3),
        (400, 30_000, TEXT, 4, 3),
        (40, 100_000, TEXT, 4, 3),
        (500_000, 50_000_000, TEXT, 32, 1),
        (50, 0, LABELLED, 4, 3),
        (90_000, 0, LABELLED, 64, 3),
        (400_000, 0, LABELLED, 64, 1),
        (1, 10, LABELLED, 1, 3),
    ],
)
def test_batch_and_epochs_follow_from_the_amount_of_data(
    rows: int, tokens: int, found: TaskFound, batch: int, epochs: int
) -> None:
    config, _ = chosen(data=replace(DATA, num_rows=rows, num_tokens=tokens), found=found)
    assert (config.train.global_batch, config.train.epochs) == (batch, epochs)


def test_a_batch_that_is_said_for_each_gpu_stands_alone_and_so_does_a_number_of_updates() -> None:
    config, choice = chosen("train.batch_size_per_gpu=8", "train.gradient_accumulation_steps=2")
    assert (config.train.global_batch, config.train.batch_size_per_gpu) == (None, 8)
    assert "about 132 updates" in choice.reasons["track.every"]  # 1,392 rows of 1,024 tokens by 32, three times
    config, _ = chosen("train.max_steps=40")
    assert (config.train.epochs, config.train.max_steps, config.train.schedule.warmup_steps) == (None, 40, 2)


def test_rows_that_are_not_packed_are_counted_one_by_one() -> None:
    config, choice = chosen("data.packing=none")
    assert config.train.global_batch == 64 and "149 updates an epoch" in choice.reasons["train.global_batch"]


def test_a_chat_is_written_by_the_models_own_template_or_a_packed_one() -> None:
    chat = TaskFound("language_modelling", ("messages",), "the rows have messages: chats", {}, "chat")
    config, _ = chosen(found=chat)
    assert (value(config, "data.row_format"), value(config, "data.template")) == ("chat", None)
    config, _ = chosen(found=chat, model=replace(MODEL, has_template=False))
    assert value(config, "data.template") == "chatml"


def test_running_text_is_read_with_the_models_own_tokenizer() -> None:
    text = replace(DATA, kind="text", source=("*.txt",), columns={}, num_rows=0, usual_tokens=0, longest_tokens=0)
    config, _ = chosen(data=text, found=TaskFound("language_modelling", (), "the files hold running text"))
    assert (value(config, "data.tokenizer"), value(config, "data.context")) == ("models/llama", 1024)


def test_preferences_are_learned_slowly_and_once() -> None:
    found = TaskFound("preference", ("prompt", "chosen", "rejected"), "the rows have prompt, chosen and rejected")
    config, _ = chosen(found=found)
    assert (config.train.lr, config.train.epochs) == (5e-7, 1)
