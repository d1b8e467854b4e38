"""A Hugging Face embedder learns pairs on any number of ranks as on one, where micro-batches are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.data.padding import Pad
from drumline.models.huggingface import Embedder
from drumline.tasks import Contrastive
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh, largest_difference


class Texts(Dataset[dict[str, Any]]):
    """Two runs of the same few ids, of different lengths."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)
        return {"anchor": self._text(index, 3 + index % 5), "positive": self._text(index, 7 - index % 4)}

    def _text(self, index: int, length: int) -> dict[str, Tensor]:
        ids = 1 + (index + torch.arange(length) % 2) % 30
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def train(directory: str, kind: str) -> Any:
    torch.manual_seed(0)
    shape = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = Embedder(transformers.BertModel(shape)).double()
    rows, collate = Texts(), Pad({"input_ids": 0, "attention_mask": 0}, 8)
    settings = {"global_batch": 8, "micro_batch": 4, "max_steps": 6, "lr": 0.01, "optimizer": {"name": "adamw"}}
    parallel = {"kind": kind, "timeout_s": 20, **({"min_params": 100} if kind == "fsdp" else {})}
    config = config_of(Case(directory, {"train": settings, "parallel": parallel, "evaluate": {"batch": 4}}))
    task, losses = Contrastive(0.1), []
    with Trainer(model, config, rows, loss=task, eval_data=rows, collate=collate) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        found = trainer.evaluate()
        state = trainer._run.strategy.state()["model"]
        return losses, found, {name: value.clone() for name, value in state.items() if value is not None}


def test_an_embedder_on_two_ranks(ranks: RankPool, tmp_path: Path) -> None:
    ((losses, found, weights),) = ranks.run(1, train, fresh(tmp_path), "single", timeout=60)
    assert losses[-1] < losses[0] and 0.2 < found["accuracy"] <= 1
    for kind in ("ddp", "fsdp"):
        answers = ranks.run(2, train, fresh(tmp_path), kind, timeout=60)
        for other, evaluation, _ in answers:
            assert other == pytest.approx(losses, rel=0, abs=1e-10)
            assert evaluation == pytest.approx(found, rel=0, abs=1e-10)
        assert largest_difference(answers[0][2], weights) < 1e-8
