"""What a prediction run comes to: rows, errors, lengths, labels, and how right they are where that is known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

MOST_ERRORS = 20
_NUMBERS = re.compile(r"\d+(?:,\d{3})*")
MOST_LABELS = 1000
"""More different ones are no labels: they are left out."""


class Summary:
    """Counts, a row at a time."""

    def __init__(self, label: str | None) -> None:
        """label: column of the input with the right answer."""
        self._label = label
        self._num_rows = 0
        self._num_failed = 0
        self._errors: Counter[str] = Counter()
        self._lengths: Counter[int] = Counter()
        self._labels: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._sets: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        """Of rows with several labels, by label: right, wrong, missed."""

    def add_lengths(self, lengths: Iterable[tuple[int, int]]) -> None:
        """Count the rows of a window by their length."""
        self._lengths.update(dict(lengths))

    def add(self, values: Mapping[str, Any], answer: Mapping[str, Any], error: str | None) -> None:
        """Count one row: its input, and what it got (without prefix)."""
        self._num_rows += 1
        if error is not None:
            self._num_failed += 1
            self._errors[_outline(error)] += 1
            return
        truth = values.get(self._label) if self._label else None
        if is_label(prediction := answer.get("prediction")):
            self._labels[as_label(prediction)] += 1
            if is_label(truth):
                self._pairs[as_label(truth), as_label(prediction)] += 1
        elif isinstance(predictions := answer.get("predictions"), list) and all(map(is_label, predictions)):
            found = [as_label(each) for each in predictions]
            self._labels.update(found)
            if isinstance(truth, list) and all(map(is_label, truth)):
                self._add_several(found, [as_label(each) for each in truth], by_place="probabilities" not in answer)

    def _add_several(self, found: list[str], truth: list[str], *, by_place: bool) -> None:
        if by_place:  # a label a word
            if len(found) == len(truth):
                self._pairs.update(zip(truth, found, strict=True))
            return
        for label in {*found, *truth}:
            self._sets[label][0 if label in found and label in truth else 1 if label in found else 2] += 1

    def as_json(self) -> dict[str, Any]:
        """The whole, as summary.json has it."""
        result: dict[str, Any] = {
            "num_rows": self._num_rows,
            "num_failed": self._num_failed,
            "errors": dict(self._errors.most_common(MOST_ERRORS)),
            "lengths": [[edge, count] for edge, count in sorted(self._lengths.items())],
        }
        if 0 < len(self._labels) <= MOST_LABELS:
            result["labels"] = dict(sorted(self._labels.items()))
        if self._pairs and len({each for pair in self._pairs for each in pair}) <= MOST_LABELS:
            result |= _of_pairs(self._pairs)
        elif self._sets and len(self._sets) <= MOST_LABELS:
            result |= {"f1": _scores({label: tuple(counts) for label, counts in self._sets.items()})}
        return result


def is_label(value: Any) -> bool:
    """Whether a value may name a class: a text, a whole number, true or false."""
    return isinstance(value, (str, int))


def as_label(value: Any) -> str:
    """A class as text; true and false as the data have them in JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_pairs(pairs: Counter[tuple[str, str]]) -> dict[str, Any]:
    """Confusion (right label -> predicted label -> rows) and what follows from it."""
    labels = sorted({each for pair in pairs for each in pair})
    confusion: dict[str, dict[str, int]] = {}
    for (truth, prediction), count in sorted(pairs.items()):
        confusion.setdefault(truth, {})[prediction] = count
    truths: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for (truth, prediction), count in pairs.items():
        truths[truth] += count
        found[prediction] += count
    counts = {label: (right := pairs[label, label], found[label] - right, truths[label] - right) for label in labels}
    accuracy = sum(pairs[label, label] for label in labels) / sum(pairs.values())
    return {"confusion": confusion, "accuracy": accuracy, "f1": _scores(counts)}


def _scores(counts: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """F1 = 2 TP / (2 TP + FP + FN), 0 where nothing is there (van Rijsbergen 1979); macro: mean over the labels;
    micro: of all counts together. A label that was only predicted counts in the macro mean, as 0.
    """
    classes = {}
    for label, (right, wrong, missed) in sorted(counts.items()):
        classes[label] = {
            "precision": right / (right + wrong) if right else 0.0,
            "recall": right / (right + missed) if right else 0.0,
            "f1": _f1(right, wrong, missed),
            "num_rows": right + missed,
        }
    micro = _f1(*(sum(column) for column in zip(*counts.values(), strict=True)))
    return {"macro": sum(each["f1"] for each in classes.values()) / len(classes), "micro": micro, "classes": classes}


def _f1(right: int, wrong: int, missed: int) -> float:
    return 2 * right / (2 * right + wrong + missed) if right else 0.0


def _outline(error: str) -> str:
    """An error's first line without its numbers, so that those of many rows count as one."""
    return _NUMBERS.sub("#", error.split("\n", 1)[0][:300])
