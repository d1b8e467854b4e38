"""A class a row, several classes, or numbers: by a model that ends in a classifier, of texts or of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from drumline.data.tokenizers import Tokenizer
from drumline.errors import ConfigError
from drumline.infer.embed import NOT_FINITE
from drumline.infer.padding_masks import MaskedBody
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.infer.text_inputs import Limit, TextRows, pad_id_of, padded

Problem = Literal["one", "several", "numbers"]
"""What a row has: one of the classes, any number of them, or numbers instead."""

_PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "one",
    "multi_label_classification": "several",
    "regression": "numbers",
}


@dataclass(frozen=True)
class Labels:
    """What a classifier's outputs stand for."""

    names: tuple[str, ...]
    problem: Problem
    threshold: float = 0.5
    """Of `several`: probability from which on a class counts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of an answer."""
        if self.problem == "numbers":
            return ("prediction",)
        return ("prediction" if self.problem == "one" else "predictions", "probabilities")

    def answers(self, logits: Tensor) -> list[Answer]:
        """Answers for logits [B, classes], on the CPU in float32. Raises ConfigError for another number of outputs."""
        if logits.shape[-1] != len(self.names):
            raise ConfigError(
                f"the model gives {logits.shape[-1]} outputs a row, and its configuration names {len(self.names)} "
                "classes",
                "correct id2label in its config.json",
            )
        finite = logits.isfinite().all(-1).tolist()
        if self.problem == "numbers":
            numbers = [row[0] if len(row) == 1 else row for row in logits.tolist()]
            return [{"prediction": n} if fine else {ERROR: NOT_FINITE} for n, fine in zip(numbers, finite, strict=True)]
        shares = logits.softmax(-1) if self.problem == "one" else logits.sigmoid()
        best = shares.argmax(-1).tolist()
        return [
            self._answer(row, place) if fine else {ERROR: NOT_FINITE}
            for row, place, fine in zip(shares.tolist(), best, finite, strict=True)
        ]

    def _answer(self, shares: list[float], best: int) -> Answer:
        probabilities = dict(zip(self.names, shares, strict=True))
        if self.problem == "one":
            return {"prediction": self.names[best], "probabilities": probabilities}
        chosen = [name for name, share in probabilities.items() if share >= self.threshold]
        return {"predictions": chosen, "probabilities": probabilities}


def labels_of(config: Any, threshold: float = 0.5) -> Labels:
    """What a transformers model's configuration says. Raises ConfigError where two classes have one name."""
    names = names_of(config)
    known = getattr(config, "problem_type", None)
    problem = _PROBLEMS.get(str(known), "numbers" if len(names) == 1 else "one")
    return Labels(names, problem, threshold)


def names_of(config: Any) -> tuple[str, ...]:
    """The names of its classes by number. Raises ConfigError where two have one name."""
    by_number = {int(number): str(name) for number, name in config.id2label.items()}
    names = tuple(by_number[number] for number in sorted(by_number))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"the model has several classes that are named {twice[0]}", "correct id2label in config.json")
    return names


class Inputs(Protocol):
    """What a classifier reads of rows."""

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """Rows in the model's form, or what is wrong with each."""

    def logits(self, rows: Sequence[Prepared | None], width: int) -> tuple[Tensor, dict[int, str]]:
        """Logits [B, classes] on the CPU in float32, and the problems of rows that only now were found, by place."""


class TextClassifier:
    """Texts, or pairs of texts, before a model with a classifier."""

    def __init__(
        self, model: nn.Module, tokenizer: Tokenizer, columns: Sequence[str], limit: Limit, device: torch.device
    ) -> None:
        """columns: one, or two, with the texts."""
        self._body = MaskedBody(model, device)
        self._rows = TextRows(tokenizer, columns, limit)
        self._pad_id = pad_id_of(model, tokenizer)

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The ids of each row, in the tokenizer's template."""
        return self._rows(rows)

    def logits(self, rows: Sequence[Prepared | None], width: int) -> tuple[Tensor, dict[int, str]]:
        """The classifier's outputs for each row of the batch."""
        output = self._body(padded(rows, width, self._pad_id, self._body.device))
        return output.logits.float().cpu(), {}


class ClassifyPredictor:
    """`prediction` and `probabilities`; of several classes a row `predictions`; of a regression `prediction` alone."""

    def __init__(self, inputs: Inputs, labels: Labels) -> None:
        self._inputs = inputs
        self._labels = labels

    @property
    def columns(self) -> tuple[str, ...]:
        """As the classifier's kind has it."""
        return self._labels.columns

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """Rows in the model's form."""
        return self._inputs.prepare(rows)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """Nothing has to be agreed on."""
        return {}

    def settle(self, facts: Facts) -> None:
        """Nothing has to be prepared."""

    @torch.inference_mode()
    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """What the classifier says to each row that is there."""
        logits, problems = self._inputs.logits(rows, width)
        answers = self._labels.answers(logits)
        own: Callable[[int], Answer] = lambda place: (  # noqa: E731
            {ERROR: problems[place]} if place in problems else answers[place]
        )
        return [own(place) for place, row in enumerate(rows) if row is not None]
