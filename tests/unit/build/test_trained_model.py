"""Runs as predictors: what training saw is what answers, with its classes, its pixels and its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drumline.build.parts import build_trainer, data_event, keep
from drumline.build.predictor import make_predictor, with_agreed_step
from drumline.build.rows import load_rows
from drumline.build.trained_model import load_run
from drumline.config.inference import InferenceConfig
from drumline.config.load import dump_config
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError, DataError, Interrupted
from drumline.infer.ledger_folder import FACTS_LOCK, lock_file
from drumline.infer.locks import Locks
from drumline.infer.records import Prepared, Row
from drumline.infer.rows import make_folders
from drumline.predictions import PredictionDir
from drumline.rundir import RunDir
from tests.tiny_models import save_llama
from tests.unit.build.data import TEXTS, recipe, write_images, write_records

CPU = torch.device("cpu")
TINY = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    **{"max_position_embeddings": 32, "vocab_size": 264, "pad_token_id": 3},
}


def trained(folder: Path, config: RunConfig) -> tuple[RunDir, Any]:
    """Two updates, and the model as it was then."""
    run = RunDir.create(folder / "run")
    run.config.write_text(dump_config(config))
    keep(run, data_event(load_rows(config)))
    with build_trainer(config, run) as trainer:
        trainer.fit()
        return run, trainer.model.eval()


def settings(run: RunDir, task: dict[str, Any], **sections: Any) -> InferenceConfig:
    values = {"rows": {"files": ["r"]}, "output": {"file": "o.jsonl"}, "task": task, **sections}
    return InferenceConfig.model_validate({**values, "model": {"path": str(run.path), **values.get("model", {})}})


def answers(predictor: Any, rows: list[Row]) -> list[dict[str, Any]]:
    found = predictor.prepare(rows)
    assert all(isinstance(row, Prepared) for row in found), found
    return list(predictor.run(found, max(row.length for row in found)))


def test_a_cnn_of_a_run_classifies_images(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set")
    model = {"kind": "cnn", "width": 4, "num_stages": 1}
    data = {"kind": "image_folders", "train": [folder], "channels": 1, "size": 8, "mean": [0.2], "std": [0.4]}
    run, own = trained(tmp_path, recipe(tmp_path, "classification", model, **data))
    predictor = make_predictor(settings(run, {"kind": "classify"}), CPU)
    [answer] = answers(predictor, [Row(0, {"path": f"{folder}/dog/255.png"})])
    with torch.no_grad():
        wanted = own(torch.full((1, 1, 8, 8), (1 - 0.2) / 0.4))[0].softmax(-1)
    assert answer["probabilities"] == pytest.approx({"cat": wanted[0].item(), "dog": wanted[1].item()}, abs=1e-5)


def test_a_hugging_face_model_of_a_run_has_the_names_of_its_classes(tmp_path: Path) -> None:
    transformers.BertConfig(**TINY).save_pretrained(tmp_path / "bert")
    model = {"kind": "huggingface", "path": str(tmp_path / "bert"), "random_weights": True}
    train = write_records(tmp_path / "rows.jsonl", TEXTS)
    config = recipe(tmp_path, "classification", model, train=[train], tokenizer="byte", context=16)
    run, own = trained(tmp_path, config)
    predictor = make_predictor(settings(run, {"kind": "classify"}), CPU)
    [answer] = answers(predictor, [Row(0, {"text": "call me"})])
    with torch.no_grad():
        wanted = own(input_ids=torch.tensor([list(b"call me")])).logits[0].softmax(-1)
    assert answer["probabilities"] == pytest.approx({"A": wanted[0].item(), "B": wanted[1].item()}, abs=1e-5)
    with pytest.raises(ConfigError, match="has learned classification, and the task is generate"):
        make_predictor(settings(run, {"kind": "generate", "prompt": {"prompt": "{text}"}}), CPU)
    with pytest.raises(ConfigError, match="split is set"):
        make_predictor(settings(run, {"kind": "classify"}, split={}), CPU)


def test_a_decoder_of_a_run_goes_on_from_the_prompt_as_it_stands(tmp_path: Path) -> None:
    train = write_records(tmp_path / "rows.jsonl", [{"text": each["text"] * 3} for each in TEXTS])
    model = {"kind": "decoder", "style": "llama", "width": 16, "num_layers": 1, "num_heads": 2}
    run, _ = trained(tmp_path, recipe(tmp_path, "language_modelling", model, train=[train], context=32))
    task = {"kind": "generate", "prompt": {"prompt": "call {text}"}, "max_new_tokens": 4}
    loaded, changed = load_run(run, settings(run, task), CPU)
    assert changed.task.prompt.raw  # type: ignore[union-attr]
    assert loaded.tokenizer is not None
    [answer] = answers(make_predictor(settings(run, task), CPU), [Row(0, {"text": "me"})])
    assert answer["new_tokens"] <= 4


def test_workers_that_come_later_load_the_checkpoint_of_the_first(tmp_path: Path) -> None:
    train = write_records(tmp_path / "rows.jsonl", [{"text": each["text"] * 3} for each in TEXTS])
    model = {"kind": "decoder", "width": 16, "num_layers": 1, "num_heads": 2}
    config = recipe(tmp_path, "language_modelling", model, train=[train], context=32)
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"keep": 1})})
    run, _ = trained(tmp_path, config)
    first, second = PredictionDir(tmp_path / "first"), PredictionDir(tmp_path / "second")
    for place in (first, second):
        make_folders(place)
    wanted = settings(run, {"kind": "generate", "prompt": {"prompt": "{text}"}})
    locks = Locks(lock_file(first))
    with locks.held(FACTS_LOCK), pytest.raises(Interrupted):  # who is asked to stop does not wait for another worker
        with_agreed_step(first, wanted, lambda: True)
    locks.close()
    assert with_agreed_step(first, wanted).model.step == 2
    longer = config.model_copy(update={"train": config.train.model_copy(update={"max_steps": 3})})
    with build_trainer(longer, run) as trainer:
        trainer.fit()
    assert with_agreed_step(first, wanted).model.step == 2
    assert with_agreed_step(second, wanted).model.step == 3
    with pytest.raises(DataError, match="no checkpoint of update 2"):
        make_predictor(with_agreed_step(first, wanted), CPU)


def test_chats_are_asked_with_the_template_that_was_learned_with(tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    chats = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": each["text"]}]}
        for each in TEXTS
    ]
    train = write_records(tmp_path / "rows.jsonl", chats)
    model = {"kind": "huggingface", "path": str(base)}
    run, own = trained(
        tmp_path, recipe(tmp_path, "language_modelling", model, train=[train], context=64, template="chatml")
    )
    task = {"kind": "generate", "prompt": {"prompt": "{text}"}, "max_new_tokens": 2}
    loaded, changed = load_run(run, settings(run, task), CPU)
    assert changed.task.prompt.template == "chatml"  # type: ignore[union-attr]
    for name, value in own.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value), name
    kept = load_run(run, settings(run, {**task, "prompt": {"prompt": "{text}", "raw": True}}), CPU)[1]
    assert kept.task.prompt.template is None  # type: ignore[union-attr]
    vector = answers(make_predictor(settings(run, {"kind": "embed"}), CPU), [Row(0, {"text": "whale"})])
    assert len(vector[0]["embedding"]) == 32
