"""How likely a causal model finds each row's text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from drumline.config.inference import ScoreTask
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import DataError
from drumline.infer.likelihood import CausalLikelihood
from drumline.infer.prompt_text import field_text
from drumline.infer.prompts import text_start
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.infer.text_inputs import Limit, checked_context
from drumline.infer.vocabulary import unknown_token

_MOST_NATS = 700.0
"""A token, on the average, beyond which a perplexity is more than a float64 holds."""


class ScorePredictor:
    """Answers `log_likelihood` (nats, summed), `perplexity` (its exponential a token) and `num_tokens`.

    What counts is each token given those before it: all of the text's where the tokenizer begins texts with a token of
    its own, such as BOS, else all but the first, which nothing stands before. num_tokens is how many those are; of none
    the log-likelihood is 0 and there is no perplexity (null). Nothing is put at the text's end. Control tokens that
    stand in the text are read as such, as when a model is trained on it.
    """

    columns = ("log_likelihood", "perplexity", "num_tokens")

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, task: ScoreTask, column: str = "text") -> None:
        """Raise ConfigError for a model that is no causal one, and for a context that it cannot have.

        column: holds the texts.
        """
        self._model = CausalLikelihood(model)
        self._tokenizer = tokenizer
        self._column = column
        self._start = text_start(tokenizer)
        most = self._model.room if task.context is None else checked_context(model, task.context)
        if self._model.room_note and most is not None and self._model.room is not None:
            # Whatever is asked for: longer rows would change what the others of their batch get.
            most = min(most, self._model.room)
        self._limit = Limit(most, task.too_long)

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The texts' ids."""
        problems: dict[int, str] = {}
        texts: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                texts[place] = "" if row.problem else field_text(row.values, self._column)
            except DataError as error:
                problems[place] = error.problem
        encoded = dict(zip(texts, self._tokenizer.encode_batch(list(texts.values())), strict=True))
        return [
            row.problem or problems.get(place) or self._prepared(row, encoded[place]) for place, row in enumerate(rows)
        ]

    def _prepared(self, row: Row, ids: Ids) -> Prepared | str:
        if not len(ids):
            return "the text is empty"
        begins = np.array_equal(ids[: len(self._start)], self._start)
        ids = ids if begins else np.concatenate([self._start, ids])
        problem = self._limit.problem_of(len(ids))
        if problem is not None:
            return problem + self._model.room_note
        ids = ids[: self._limit.tokens]
        return unknown_token(ids, self._model.vocabulary) or Prepared(row.number, len(ids), len(ids), ids)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """Nothing."""
        return {}

    def settle(self, facts: Facts) -> None:
        """Nothing."""

    @torch.inference_mode()
    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """The answers; a row whose likelihood is no number gets that as its error."""
        ids = self._model.padded([None if row is None else row.payload for row in rows], width)
        table = np.zeros((len(rows), 0))
        if width > 1:
            states = self._model.states(ids)[:, :-1]
            found = self._model.log_likelihoods(states.flatten(0, 1), ids[:, 1:].flatten()[:, None].to(states.device))
            table = found.view(len(rows), -1).cpu().double().numpy()
        return [_answer(own[: row.length - 1]) for own, row in zip(table, rows, strict=True) if row is not None]


def _answer(log_likelihoods: NDArray[np.float64]) -> Answer:
    total, number = float(log_likelihoods.sum()), len(log_likelihoods)
    if not math.isfinite(total):
        return {ERROR: "the model's likelihood of the text is no number"}
    mean = -total / number if number else math.inf
    return {
        "log_likelihood": total,
        "perplexity": math.exp(mean) if mean < _MOST_NATS else None,
        "num_tokens": number,
    }
