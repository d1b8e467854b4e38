"""A Hugging Face model is read by rank 0 alone, and is the same everywhere once it is spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from drumline import Trainer
from drumline.build.parts import build_parts
from drumline.parallel.groups import started_world
from drumline.parallel.materialise import on_meta
from tests.rank_pool import RankPool
from tests.ranks.sharded import whole
from tests.ranks.training import Case, config_of, fresh, largest_difference

VOCABULARY = 40


def tiny_llama(folder: Path, **changes: Any) -> Any:
    """With rotary positions, whose buffers no checkpoint holds."""
    torch.manual_seed(3)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
    config = transformers.LlamaConfig(**{**shape, **changes}, bos_token_id=0, eos_token_id=0)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model


def train(
    directory: str, parallel: dict[str, Any], model: dict[str, Any]
) -> tuple[dict[str, Tensor], list[float], dict[str, Tensor]]:
    """Weights as loaded, losses, and weights at the end."""
    sections = {
        "model": {"kind": "huggingface", **model},
        "data": {"kind": "random_tokens", "num_rows": 16, "context": 8, "vocab_size": VOCABULARY},
        "task": {"kind": "language_modelling", "chunked_loss": False},
        "train": {"global_batch": 4, "max_steps": 3, "precision": "fp32"},
        "parallel": {"timeout_s": 20, **parallel},
        "hardware": {"device": "cpu"},
    }
    config = config_of(Case(directory, sections))
    built = build_parts(config)
    is_reader = started_world().rank == 0
    assert bool(on_meta(built.model)) != is_reader
    losses = []
    with Trainer(built.model, config, built.train, **built.options) as trainer:
        assert trainer.world is not None  # begins the run
        begun = {name: value.clone() for name, value in whole(trainer.model).items()}
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        return begun, losses, {name: value.clone() for name, value in whole(trainer.model).items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_rank_0_reads_for_all(ranks: RankPool, tmp_path: Path, kind: str, tied: bool) -> None:
    saved = tiny_llama(tmp_path / "model", tie_word_embeddings=tied)
    model = {"path": str(tmp_path / "model")}
    parallel = {"kind": kind, **({"min_params": 100} if kind == "fsdp" else {})}
    (tmp_path / "runs").mkdir()
    ((_, expected, after),) = ranks.run(1, train, fresh(tmp_path / "runs"), {"kind": "single"}, model)
    for begun, losses, ended in ranks.run(2, train, fresh(tmp_path / "runs"), parallel, model):
        assert largest_difference(begun, saved.state_dict()) == 0
        assert losses == pytest.approx(expected, rel=1e-5)
        assert largest_difference(ended, after) < 1e-5


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_adapter_goes_the_same_way(ranks: RankPool, tmp_path: Path, kind: str) -> None:
    saved = tiny_llama(tmp_path / "model")
    model = {"path": str(tmp_path / "model"), "adapter": {"rank": 2, "train_also": ["lm_head"]}}
    (tmp_path / "runs").mkdir()
    ((first, expected, _),) = ranks.run(1, train, fresh(tmp_path / "runs"), {"kind": "single"}, model)
    for begun, losses, ended in ranks.run(2, train, fresh(tmp_path / "runs"), {"kind": kind}, model):
        assert largest_difference(begun, first) == 0
        assert losses == pytest.approx(expected, rel=1e-5)
        frozen = "model.layers.0.self_attn.q_proj.base_layer.weight"
        assert torch.equal(ended[frozen], saved.get_parameter("model.layers.0.self_attn.q_proj.weight"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_random_weights_are_rank_0s_too(ranks: RankPool, tmp_path: Path, kind: str) -> None:
    tiny_llama(tmp_path / "model")
    model = {"path": str(tmp_path / "model"), "random_weights": True}
    (tmp_path / "runs").mkdir()
    ((first, expected, _),) = ranks.run(1, train, fresh(tmp_path / "runs"), {"kind": "single"}, model)
    for begun, losses, _ in ranks.run(2, train, fresh(tmp_path / "runs"), {"kind": kind}, model):
        assert largest_difference(begun, first) == 0
        assert losses == pytest.approx(expected, rel=1e-5)
