"""Training runs of a tiny model with an adapter that rank tests vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from drumline import Trainer
from drumline.build.parts import build_parts
from drumline.models.adapters import kept_names
from tests.ranks.sharded import whole
from tests.ranks.training import Case as Base
from tests.ranks.training import config_of

VOCABULARY = 40


def tiny_llama(folder: Path, seed: int = 3, **changes: Any) -> Any:
    """A model's folder."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    }
    config = transformers.LlamaConfig(**{**shape, **changes}, bos_token_id=0, eos_token_id=0)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return model


@dataclass(frozen=True)
class Case:
    """One training run."""

    directory: str
    model: Mapping[str, Any]
    parallel: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)
    load: str | None = None
    save: int | None = None
    """Updates between two checkpoints."""
    initial: str | None = None
    resume: bool = False
    double: bool = True
    seed: int = 0
    format: str = "auto"


@dataclass
class Seen:
    """What one rank saw of it."""

    losses: list[float]
    begun: dict[str, Tensor]
    weights: dict[str, Tensor]
    kept: frozenset[str] | None


def train(case: Case) -> Seen:
    """Run the case on this rank."""
    sections = {
        "model": {"kind": "huggingface", **case.model},
        "data": {"kind": "random_tokens", "num_rows": 24, "context": 8, "vocab_size": VOCABULARY},
        "task": {"kind": "language_modelling", "chunked_loss": False},
        "train": {"global_batch": 4, "max_steps": 4, "precision": "fp32", **case.train},
        "parallel": {"timeout_s": 20, **case.parallel},
        "hardware": {"device": "cpu"},
        "checkpoint": {"every": case.save, "at_end": False, "initial": case.initial, "format": case.format},
        "seed": case.seed,
    }
    config = config_of(Base(case.directory, sections))
    built = build_parts(config)
    model = built.model.double() if case.double else built.model
    losses = []
    with Trainer(model, config, built.train, **built.options) as trainer:
        if case.load is not None:
            trainer.load(case.load)
        assert trainer.world is not None  # begins the run
        begun = {name: value.clone() for name, value in whole(trainer.model).items()}
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        ended = {name: value.clone() for name, value in whole(trainer.model).items()}
    return Seen(losses, begun, ended, kept_names(trainer.model))


def train_several(cases: list[Case]) -> list[Seen]:
    """Run the cases one after the other on this rank."""
    return [train(case) for case in cases]


def import_peft() -> None:
    """Let this rank have imported what adapters need."""
    import peft

    assert peft.inject_adapter_in_model
