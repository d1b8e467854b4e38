"""Packed texts and texts by length give the same losses on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from drumline import Trainer
from drumline.data.document_packing import packed
from drumline.data.length_order import ByLength
from drumline.data.padding import Pad
from drumline.data.token_row_cache import Encoding, token_rows
from drumline.models.attention_varlen import varlen_attention
from drumline.tasks.language_modelling import LanguageModelling
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh, largest_difference

VOCABULARY, CONTEXT = 32, 24
Answer = tuple[list[float], dict[str, Tensor]]


def encode(record: Any) -> Any:
    """Counts up from a start and by a step of its own; every third token is not learned."""
    number = record["number"]
    ids = (number + np.arange(3 + number * 7 % 15) * (1 + number % 3)) % VOCABULARY
    return [(ids, np.arange(len(ids)) % 3 != 1)]


class Causal(nn.Module):
    """One layer with variable-length attention; transformers takes long to import on every rank."""

    is_causal = True

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.places = nn.Embedding(CONTEXT, 16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, VOCABULARY)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> Tensor:
        """Logits [B, T, VOCABULARY]."""
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        states = self.tokens(input_ids) + self.places(places)
        query, key, value = self.qkv(states).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mixed, _ = varlen_attention(self, query, key, value, None, cu_seqlens=cu_seqlens)
        logits: Tensor = self.out(states + mixed.flatten(-2))
        return logits


def train(directory: str, cache: str, micro: int | str, packs: bool) -> Answer:
    """Ranks that begin at one moment encode the same rows side by side."""
    torch.manual_seed(0)
    model = Causal().double()
    records = [{"number": number} for number in range(60)]
    rows: Any = token_rows(records, Encoding(encode, [], VOCABULARY, CONTEXT, Path(cache)), "data.train")
    data: Any = ByLength(rows, 8)
    collate: Any = Pad({"input_ids": 0, "labels": -100}, 8)
    if packs:
        data, collate = packed(rows, CONTEXT)
    settings = {"global_batch": 8, "micro_batch": micro, "max_steps": 6, "precision": "fp32"}
    config, losses = config_of(Case(directory, {"train": settings, "hardware": {"device": "cpu"}})), []
    with Trainer(model, config, data, loss=LanguageModelling(VOCABULARY), collate=collate) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
    return losses, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("packs", [True, False], ids=["packed", "by length"])
def test_two_ranks_are_one(ranks: RankPool, tmp_path: Path, packs: bool) -> None:
    cache = str(tmp_path / "cache")
    ((expected, weights),) = ranks.run(1, train, fresh(tmp_path), cache, "auto", packs)
    assert len(set(expected)) == 6
    for losses, trained in ranks.run(2, train, fresh(tmp_path), cache, 3, packs):
        torch.testing.assert_close(losses, expected, rtol=1e-10, atol=0)
        assert largest_difference(trained, weights) < 1e-10
