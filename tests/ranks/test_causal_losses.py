"""Hugging Face causal models over ranks: chunked losses, masked and packed batches, metrics; one answer for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.config.model import DecoderModel
from drumline.data.label_places import LabelPlaces
from drumline.data.padding import Pad
from drumline.models import chunked_loss
from drumline.models.causal_head import find_tail
from drumline.models.decoder import Decoder, decoder_from_config
from drumline.tasks import LanguageModelling
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh, largest_difference

VOCABULARY, CONTEXT = 24, 16
Answer = tuple[list[float], dict[str, float], dict[str, Tensor]]


class Prompts(Dataset[dict[str, Tensor]]):
    """Rows of several lengths that count up; the last third of each is learned."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index >= self._num_rows:
            raise IndexError(index)
        length = 6 + index % 10
        tokens = (index + torch.arange(length + 1)) % VOCABULARY
        labels = tokens[1:].clone()
        labels[: length - length // 3] = -100
        return {"input_ids": tokens[:-1], "attention_mask": torch.ones(length, dtype=torch.int64), "labels": labels}


class Packed(Dataset[dict[str, Tensor]]):
    """Two such texts a row."""

    def __init__(self, num_rows: int) -> None:
        self._texts = Prompts(2 * num_rows)

    def __len__(self) -> int:
        return len(self._texts) // 2

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        both = [self._texts[2 * index], self._texts[2 * index + 1]]
        row = {name: torch.cat([text[name] for text in both]) for name in ("input_ids", "labels")}
        row["position_ids"] = torch.cat([torch.arange(len(text["labels"])) for text in both])
        left = 2 * CONTEXT - len(row["labels"])
        fill = {"input_ids": 0, "labels": -100}
        return {
            **{name: torch.cat([row[name], torch.full((left,), value)]) for name, value in fill.items()},
            "position_ids": torch.cat([row["position_ids"], torch.arange(left)]),
        }


def own_model() -> Decoder:
    """With an output layer that fsdp shards by itself."""
    shape = DecoderModel(style="llama", num_layers=2, num_heads=2, width=16, mlp_width=32, tie_embeddings=False)
    return decoder_from_config(shape, VOCABULARY, 64).double()


def llama() -> transformers.LlamaForCausalLM:
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(shape).double()


def train(directory: str, kind: str, packed: bool, chunked: bool, reshards: str | None = None) -> Answer:
    """Losses, evaluation after training, and weights; of our own model where it is said when gathered weights go."""
    torch.manual_seed(0)
    model = llama() if reshards is None else own_model()
    tail = (find_tail(model) if reshards is None else True) if chunked else False
    before, chunked_loss.CHUNK_LOGITS = chunked_loss.CHUNK_LOGITS, 5 * VOCABULARY
    rows: Dataset[Any] = Packed(30) if packed else Prompts(60)
    pad = LabelPlaces(Pad({"input_ids": 0, "attention_mask": 0, "labels": -100}, 8))
    parts: dict[str, Any] = {"collate": pad if chunked or not packed else None}
    task = LanguageModelling(VOCABULARY, chunked_loss=tail, exact_match=True)
    settings = {"global_batch": 6, "micro_batch": 2, "max_steps": 24, "lr": 0.03, "optimizer": {"name": "adamw"}}
    parallel = {"kind": kind, "timeout_s": 20}
    if kind == "fsdp":
        parallel |= {"min_params": 100, "reshard_after_forward": reshards or "auto"}
    config = config_of(Case(directory, {"train": settings, "parallel": parallel, "evaluate": {"batch": 4}}))
    losses = []
    try:
        with Trainer(model, config, rows, loss=task, eval_data=rows, **parts) as trainer:
            for info in trainer.steps():
                assert info.logged is not None
                losses.append(info.logged["loss"])
            found = trainer.evaluate()
            state = trainer._run.strategy.state()["model"]
            return losses, found, {name: value.clone() for name, value in state.items() if value is not None}
    finally:
        chunked_loss.CHUNK_LOGITS = before


@pytest.mark.parametrize("packed", [False, True])
def test_chunked_on_ranks_is_plain_on_one(ranks: RankPool, tmp_path: Path, packed: bool) -> None:
    ((losses, found, weights),) = ranks.run(1, train, fresh(tmp_path), "single", packed, False, timeout=60)
    assert losses[-1] < losses[0] and 0 < found["exact_match"] < found["accuracy"] < 1
    for kind in ("ddp", "fsdp"):
        assert_alike(ranks.run(2, train, fresh(tmp_path), kind, packed, True, timeout=60), losses, found, weights)


@pytest.mark.parametrize("reshards", ["always", "never"])
def test_an_output_layer_sharded_by_itself(ranks: RankPool, tmp_path: Path, reshards: str) -> None:
    ((losses, found, weights),) = ranks.run(1, train, fresh(tmp_path), "single", False, False, reshards, timeout=60)
    assert losses[-1] < losses[0] / 10
    for chunked in (True, False):
        answers = ranks.run(2, train, fresh(tmp_path), "fsdp", False, chunked, reshards, timeout=60)
        assert_alike(answers, losses, found, weights)


def assert_alike(answers: list[Answer], losses: list[float], found: dict[str, float], weights: dict[str, Any]) -> None:
    for other, evaluation, _ in answers:
        assert other == pytest.approx(losses, rel=0, abs=1e-10)
        assert evaluation == pytest.approx(found, rel=0, abs=1e-10)
    assert largest_difference(answers[0][2], weights) < 1e-8
