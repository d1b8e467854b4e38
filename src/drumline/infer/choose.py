"""One of given labels for each row: the one that a causal model finds likeliest as the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from drumline.config.inference import ChooseTask
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import ConfigError
from drumline.infer.label_likelihoods import LabelLikelihoods, Sums
from drumline.infer.likelihood import CausalLikelihood
from drumline.infer.prefix import shared_prefix
from drumline.infer.prompts import PromptMaker
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.infer.vocabulary import unknown_token

_PREFIX = "prefix"
_LEAST_SHARE = 0.125
"""Of the prompts' tokens that are the prefix. Behind one, attention needs a mask, which costs more than without."""
_CONTEXT = "\n"
"""What labels are tokenised behind."""


class ChoosePredictor:
    """Answers `prediction`, the likeliest label, and `probabilities`, the softmax of all labels' log-likelihoods.

    A label's likelihood is that of its tokens after the prompt's, `sum` or `mean` over them; what a model would write
    after it counts for nothing. A label is tokenised by itself, as an answer after a chat prompt is: it never joins
    with the prompt's last token, and where a raw prompt ends in a word, the space before an answer belongs into the
    label (" yes"). Labels as likely as each other: the first.
    """

    columns = ("prediction", "probabilities")

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, task: ChooseTask, folder: Path | None = None) -> None:
        """Raise ConfigError for labels that cannot be told apart, and for a model that is no causal one.

        folder: where a chat template may be, besides the tokenizer's own folder.
        """
        self._prompts = PromptMaker(task.prompt, tokenizer, folder, task.labels)
        self.labels = self._prompts.labels
        ids = label_ids(self.labels, tokenizer, by_sum=task.score == "sum")
        self._lengths = np.array([len(each) for each in ids], dtype=np.float64)
        self._by_sum = task.score == "sum"
        self._model = CausalLikelihood(model)
        self._likelihoods = LabelLikelihoods(self._model, ids)
        self._longest = int(self._lengths.max())

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The prompts' ids."""
        return [self._prepared(row) for row in rows]

    def _prepared(self, row: Row) -> Prepared | str:
        ids = self._prompts.ids_or_problem(row)
        if isinstance(ids, str):
            return ids
        if (problem := unknown_token(ids, self._model.vocabulary)) is not None:
            return problem
        room, note = self._model.room, self._model.room_note
        if room is not None and len(ids) + self._longest - 1 > room:
            return f"it has {len(ids) + self._longest - 1:,} tokens with its label, and the model takes {room:,}" + note
        return Prepared(row.number, len(ids), len(ids) + self._likelihoods.num_nodes, ids)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """What all prompts begin with, which is computed once; nothing where that would spare too little."""
        prompts = [each.payload for each in prepared]
        prefix = shared_prefix(prompts) if self._likelihoods.is_tree else []
        spares = len(prefix) * len(prompts) >= _LEAST_SHARE * sum(map(len, prompts))
        return {_PREFIX: prefix if spares else []}

    def settle(self, facts: Facts) -> None:
        """Check once how the model takes labels, and take the prefix."""
        self._likelihoods.verify()
        self._likelihoods.share(facts.get(_PREFIX, ()))

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """The answers; a row whose likelihoods are no numbers gets that as its error."""
        sums = self.log_likelihoods(rows, width)
        scores = sums if self._by_sum else sums / self._lengths
        return [self._answer(own) for own, row in zip(scores, rows, strict=True) if row is not None]

    def log_likelihoods(self, rows: Sequence[Prepared | None], width: int) -> Sums:
        """Of each row and label, float64 [rows, labels], in nats, summed over the label's tokens."""
        return self._likelihoods([None if row is None else row.payload for row in rows], width)

    def _answer(self, scores: Sums) -> Answer:
        best = scores.max()
        if not np.isfinite(best):
            return {ERROR: "the model's likelihoods of the labels are no numbers"}
        shares = np.exp(scores - best)
        shares /= shares.sum()
        return {
            "prediction": self.labels[int(scores.argmax())],
            "probabilities": dict(zip(self.labels, shares.tolist(), strict=True)),
        }


def refuse_few(labels: Sequence[str]) -> None:
    """Raise ConfigError for fewer than two labels, and for one that stands there twice."""
    if len(labels) < 2:
        raise ConfigError(
            f"to choose needs two labels or more, and there are {len(labels)}",
            "--set task.labels='[yes, no]', or a strategy that has labels",
        )
    twice = [label for label, count in Counter(labels).items() if count > 1]
    if twice:
        raise ConfigError(f"task.labels holds {twice[0]!r} twice", "leave one of them out")


def label_ids(labels: Sequence[str], tokenizer: Tokenizer, *, by_sum: bool) -> list[Ids]:
    """Ids of each label as an answer's, never empty. Raises ConfigError for labels of which one could never win."""
    where = "task.labels"
    refuse_few(labels)
    found = [_continuing(label, tokenizer) for label in labels]
    by_ids: dict[tuple[int, ...], str] = {}
    for label, ids in zip(labels, found, strict=True):
        if not len(ids):
            raise ConfigError(f"{where} holds {label!r}, of which the tokenizer makes nothing", "give it other words")
        other = by_ids.setdefault(tuple(ids.tolist()), label)
        if other != label:
            raise ConfigError(
                f"{where}: {other!r} and {label!r} are the same to the model's tokenizer", "give one other words"
            )
    for tokens, label in by_ids.items():
        shorter = next((by_ids[tokens[:n]] for n in range(1, len(tokens)) if tokens[:n] in by_ids), None)
        if by_sum and shorter is not None:
            raise ConfigError(
                f"{where}: {label!r} begins with {shorter!r}, which is then at least as likely and would always win",
                "give one of them other words, or --set task.score=mean",
            )
    return found


def _continuing(label: str, tokenizer: Tokenizer) -> Ids:
    """Ids of a text that follows another, so without what some tokenizers put before each text, such as a space."""
    head, both = tokenizer.encode(_CONTEXT), tokenizer.encode(_CONTEXT + label)
    if len(both) > len(head) and np.array_equal(both[: len(head)], head):
        return both[len(head) :]
    return tokenizer.encode(label)
