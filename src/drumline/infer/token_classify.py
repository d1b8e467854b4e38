"""A class a word: that of the word's first token, as such models are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from drumline.config.inference import TokenClassifyTask
from drumline.data.tokenizers import Tokenizer, Words
from drumline.errors import ConfigError
from drumline.infer.classify import names_of
from drumline.infer.embed import NOT_FINITE
from drumline.infer.padding_masks import MaskedBody
from drumline.infer.prompt_text import is_absent
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.infer.text_inputs import UNCUT, Encoded, limit_of, pad_id_of, padded, prepared_ids


class TokenClassifyPredictor:
    """`predictions`: a class a word, in the words' order; null for a word that has no token, or was cut off.

    A text is split at white space; a list is taken for the words as they are.
    """

    columns = ("predictions",)

    def __init__(
        self, model: nn.Module, tokenizer: Tokenizer, task: TokenClassifyTask, text: str, device: torch.device
    ) -> None:
        """model: transformers' with a classifier of tokens, in evaluation mode; text: the column that is read."""
        self._body = MaskedBody(model, device)
        self._tokenizer = tokenizer
        self._text = text
        self._limit = limit_of(model, task.context, task.too_long)
        self._pad_id = pad_id_of(model, tokenizer)
        self._names = names_of(model.config)

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The ids of each row's words, and where each word begins."""
        return [self._prepared(row) for row in rows]

    def _prepared(self, row: Row) -> Prepared | str:
        if row.problem is not None:
            return row.problem
        if self._text not in row.values:
            return f"the row has no field {self._text!r}"
        words = words_of(row.values[self._text])
        if words is None:
            return f"the row's field {self._text!r} is neither a text nor a list of words"
        ids, numbers = self._tokenizer.encode_words(words, UNCUT)
        if problem := self._limit.problem_of(len(ids)):
            return problem
        if self._limit.cuts(len(ids)):
            assert self._limit.tokens is not None
            ids, numbers = self._tokenizer.encode_words(words, self._limit.tokens)
        return prepared_ids(row.number, Encoded(ids, None, first_places(numbers, len(words))), self._tokenizer)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """Nothing has to be agreed on."""
        return {}

    def settle(self, facts: Facts) -> None:
        """Nothing has to be prepared."""

    @torch.inference_mode()
    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """The classes of each row's words."""
        logits = self._body(padded(rows, width, self._pad_id, self._body.device)).logits.float()
        if logits.shape[-1] != len(self._names):
            raise ConfigError(
                f"the model gives {logits.shape[-1]} outputs a token, and names {len(self._names)} classes",
                "correct id2label in its config.json",
            )
        best = logits.argmax(-1).cpu().numpy()
        finite = logits.isfinite().all(-1).cpu().numpy()
        return [
            self._answer(row.payload, best[place], finite[place]) for place, row in enumerate(rows) if row is not None
        ]

    def _answer(self, encoded: Encoded, best: Any, finite: Any) -> Answer:
        places: Any = encoded.places
        if not finite[places[places >= 0]].all():
            return {ERROR: NOT_FINITE}
        return {"predictions": [self._names[int(best[place])] if place >= 0 else None for place in places]}


def words_of(value: Any) -> list[str] | None:
    """The words of a text or of a list; None where it is neither."""
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list | tuple) and all(_is_word(word) for word in value):
        return [str(word) for word in value]
    return None


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int | float) and not is_absent(value)


def first_places(numbers: Words, num_words: int) -> Any:
    """Where each word's first id stands, int64 [words]; -1 where it has none."""
    places = np.full(num_words, -1, dtype=np.int64)
    for place, word in enumerate(numbers):
        if word is not None and places[word] < 0:
            places[word] = place
    return places
