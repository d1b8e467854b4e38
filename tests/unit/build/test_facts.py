"""What is counted of a recipe's model without making it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import nn

from drumline.build.facts import answer, facts_of
from drumline.config.load import config_from_mapping, dump_config
from drumline.config.schema import RunConfig
from tests.unit.build.data import TEXTS, recipe, write_images, write_records


@pytest.fixture(autouse=True)
def import_system() -> Iterator[None]:
    """What a user's file leaves behind is taken back."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name == "mine":
            del sys.modules[name]


def random_tokens(precision: str = "fp32", **model: Any) -> RunConfig:
    sections = {
        "data": {"kind": "random_tokens", "num_rows": 10, "context": 16, "vocab_size": 100},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16, **model},
        "train": {"global_batch": 2, "max_steps": 2, "precision": precision},
    }
    return config_from_mapping(sections, "this test")


def test_a_decoder_by_its_shape() -> None:
    found = facts_of(random_tokens())
    block = 12 * 16 * 16 + 13 * 16
    assert found["num_rows"] == 10
    assert found["facts"]["num_parameters"] == 2 * block + (128 + 16 + 2) * 16
    assert found["facts"]["activation_bytes"] > 16 * 128 * 4, "the logits at least"
    assert found["facts"]["note"] == ""


def test_a_model_far_larger_than_this_machine_takes_no_memory() -> None:
    found = facts_of(random_tokens("bf16", num_layers=2, num_heads=96, width=98304))["facts"]
    assert found["num_parameters"] > 200_000_000_000
    assert found["parameter_bytes"] == 4 * found["num_parameters"]


def test_precision_is_the_configs() -> None:
    wide, narrow = (facts_of(random_tokens(precision))["facts"] for precision in ("fp32", "bf16"))
    assert narrow["activation_bytes"] < wide["activation_bytes"]
    assert narrow["fixed_bytes"] > wide["fixed_bytes"]


def test_weights_of_a_folder_are_not_read(tmp_path: Path) -> None:
    shape = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=264, pad_token_id=3
    )
    shape.save_pretrained(tmp_path / "bert")
    rows = write_records(tmp_path / "rows.jsonl", TEXTS)
    model = {"kind": "huggingface", "path": str(tmp_path / "bert")}
    found = facts_of(recipe(tmp_path, "classification", model, train=[rows], context=16, tokenizer="byte"))["facts"]
    real = transformers.BertForSequenceClassification(shape)
    assert found["num_parameters"] == sum(p.numel() for p in real.parameters())
    assert found["activation_bytes"] > 0


def test_images(tmp_path: Path) -> None:
    data = {"kind": "image_folders", "train": [write_images(tmp_path / "train")], "size": 8}
    found = facts_of(recipe(tmp_path, "classification", {"kind": "cnn", "width": 4}, **data))
    assert found["num_rows"] == 4
    assert found["facts"]["activation_bytes"] > 0


def test_a_users_own_model(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "from torch.utils.data import TensorDataset\n"
        "def make_model(config):\n"
        "    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))\n"
        "def make_data(config):\n"
        "    return TensorDataset(torch.zeros(6, 3)), None\n"
        "def loss(model, batch):\n"
        "    return model(batch[0]).square().mean()\n"
    )
    sections = {"model": {"kind": "python", "file": str(file)}, "train": {"global_batch": 2, "max_steps": 2}}
    found = facts_of(config_from_mapping(sections, "this test"))
    assert found["num_rows"] == 6
    assert found["facts"]["num_parameters"] == sum(p.numel() for p in nn.Linear(3, 4).parameters()) + 5
    # Inputs, what tanh gives, and what is squared, in float32.
    assert found["facts"]["activation_bytes"] == 4 * (3 + 4 + 1)


def test_what_keeps_a_recipe_from_being_built_is_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_config(random_tokens()).replace("kind: random_tokens", "kind: nothing"))
    assert "'nothing' is no kind" in answer(file)["error"]
    (tmp_path / "mine.py").write_text("def make_model(config):\n    raise OSError('no weights here')\n")
    sections = {
        "model": {"kind": "python", "file": str(tmp_path / "mine.py")},
        "data": {"kind": "random_tokens", "num_rows": 4},
        "train": {"global_batch": 2, "max_steps": 2},
    }
    file.write_text(dump_config(config_from_mapping(sections, "this test")))
    assert answer(file) == {"error": "OSError: no weights here"}
