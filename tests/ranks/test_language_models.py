"""Real language models give the same losses on any number of ranks, with labels that are few, many or missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.config.model import DecoderModel
from drumline.models.decoder import decoder_from_config
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh, largest_difference

VOCABULARY, CONTEXT = 32, 12
Answer = tuple[list[float], dict[str, Tensor]]


class Progressions(Dataset[dict[str, Tensor]]):
    """Row i counts up modulo VOCABULARY from a start and by a step of its own; its last labels are -100.

    `counted[i % len(counted)]` labels of CONTEXT are left. shifted: labels[t] is the token after input_ids[t], as the
    decoder wants it; else the token itself, as transformers does.
    """

    def __init__(self, num_rows: int, counted: Sequence[int], *, shifted: bool) -> None:
        self._num_rows = num_rows
        self._counted = counted
        self._shifted = shifted

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + torch.arange(CONTEXT + 1) * (1 + index % 3)) % VOCABULARY
        labels = tokens[1:].clone() if self._shifted else tokens[:-1].clone()
        labels[self._counted[index % len(self._counted)] :] = -100
        return {"input_ids": tokens[:-1], "labels": labels}


def train_on(directory: str, model: nn.Module, rows: Dataset[dict[str, Tensor]], train: dict[str, Any]) -> Answer:
    losses = []
    with Trainer(model, config_of(Case(directory, {"train": train})), rows) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


def train_decoder(directory: str, style: Literal["gpt2", "llama"], micro: int | str) -> Answer:
    torch.manual_seed(0)
    shape = DecoderModel(style=style, num_layers=2, num_heads=4, num_kv_heads=2, width=32)
    model = decoder_from_config(shape, VOCABULARY, CONTEXT)
    train = {
        "global_batch": 8,
        "micro_batch": micro,
        "max_steps": 50,
        "max_norm": 1.0,
        "lr": 0.003,
        "optimizer": {"name": "adamw", "weight_decay": 0.1},
        "schedule": {"name": "cosine", "warmup_steps": 5},
    }
    return train_on(directory, model, Progressions(101, (12, 7, 1, 0, 9), shifted=True), train)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_fifty_updates_of_the_reference_decoder(ranks: RankPool, tmp_path: Path, style: str) -> None:
    ((expected, _),) = ranks.run(1, train_decoder, fresh(tmp_path), style, "auto")
    assert len(expected) == 50
    assert expected[-1] < 0.8 * expected[0]
    for world, micro in ((2, "auto"), (3, 1)):
        for losses, _ in ranks.run(world, train_decoder, fresh(tmp_path), style, micro):
            torch.testing.assert_close(losses, expected, rtol=1e-4, atol=0)


def train_gpt2(directory: str, micro: int | str) -> Answer:
    """transformers' GPT-2 with random weights; the second half of each update's rows has no labels."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 1, "n_head": 2}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **off)).double()
    train = {"global_batch": 8, "micro_batch": micro, "max_steps": 8, "shuffle": False}
    return train_on(directory, model, Progressions(64, (12, 5, 9, 2, 0, 0, 1, 0), shifted=False), train)


@pytest.mark.parametrize("micro", ["auto", 2])
def test_a_rank_whose_share_has_no_labels(ranks: RankPool, tmp_path: Path, micro: int | str) -> None:
    ((expected, weights),) = ranks.run(1, train_gpt2, fresh(tmp_path), "auto")
    assert len(expected) == 8 and all(math.isfinite(loss) for loss in expected)
    assert len(set(expected)) == 8
    for losses, trained in ranks.run(2, train_gpt2, fresh(tmp_path), micro):
        # transformers computes the loss in float32, whatever the model is.
        torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0)
        assert largest_difference(trained, weights) < 1e-6
