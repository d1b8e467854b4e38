"""One vector a row: the last hidden states of its tokens, brought together."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.config.inference import EmbedTask
from drumline.data.tokenizers import Tokenizer
from drumline.infer.padding_masks import MaskedBody
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.infer.text_inputs import TextRows, limit_of, pad_id_of, padded

POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""What sentence-transformers calls them, in 1_Pooling/config.json."""
NOT_FINITE = "the model's answer is not finite (NaN or infinite)"

logger = logging.getLogger("drumline")


class EmbedPredictor:
    """`embedding`: a vector a row, a NumPy array of float32 whatever the model computes in."""

    columns = ("embedding",)

    def __init__(
        self, model: nn.Module, tokenizer: Tokenizer, task: EmbedTask, text: str, device: torch.device
    ) -> None:
        """model: a transformers model without a head, in evaluation mode; text: the column that is read."""
        self._task = task
        self._body = MaskedBody(model, device)
        self._rows = TextRows(tokenizer, (text,), limit_of(model, task.context, task.too_long))
        self._pad_id = pad_id_of(model, tokenizer)

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The ids of each row, in the tokenizer's template."""
        return self._rows(rows)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """Nothing has to be agreed on."""
        return {}

    def settle(self, facts: Facts) -> None:
        """Nothing has to be prepared."""

    @torch.inference_mode()
    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """The vector of each row that is there."""
        batch = padded(rows, width, self._pad_id, self._body.device)
        states: Tensor = self._body(batch).last_hidden_state
        vectors = pooled(states, batch.mask, self._task.pooling)
        if self._task.normalise:
            vectors = nn.functional.normalize(vectors, dim=-1)
        found = vectors.cpu()
        finite = found.isfinite().all(-1).tolist()
        values = found.numpy()  # not as lists: the ledger keeps arrays as bytes
        return [
            {"embedding": values[place]} if finite[place] else {ERROR: NOT_FINITE}
            for place, row in enumerate(rows)
            if row is not None
        ]


def body_of(model: Any) -> nn.Module:
    """What gives hidden states: a model without its head, and of an encoder with a decoder the encoder."""
    body: nn.Module = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    return body


def warn_of_pooling(task: EmbedTask, folder: Path | None) -> None:
    """Log a warning where a folder of sentence-transformers says that its model was trained with another pooling."""
    file = None if folder is None else folder / "1_Pooling" / "config.json"
    if file is None or not file.is_file():
        return
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
        trained = [name for mark, name in POOLINGS.items() if stated.get(mark)]
    except (OSError, ValueError, AttributeError) as error:
        logger.warning("%s is damaged: %s", file, error)
        return
    if trained and task.pooling not in trained:
        logger.warning(
            "the model in %s was trained with pooling %s; task.pooling is %s", folder, trained[0], task.pooling
        )


def pooled(states: Tensor, mask: Tensor, pooling: Literal["mean", "cls", "last"]) -> Tensor:
    """States [B, T, D] and mask [B, T], with padding at the right, to float32 vectors [B, D]."""
    if pooling == "cls":
        return states[:, 0].float()
    if pooling == "last":
        last = mask.sum(1) - 1
        return states[torch.arange(len(states), device=states.device), last].float()
    weights = mask.to(torch.float32).unsqueeze(-1)
    # Not states * weights: where padding has become NaN or infinite, so would the sum.
    kept = states.float().masked_fill(~mask.unsqueeze(-1), 0.0)
    return kept.sum(1) / weights.sum(1)
