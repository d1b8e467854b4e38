"""What a look through the rows comes to: an event for events.jsonl, a short table, and what should be seen to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.data.duplicates import Same
from drumline.data.schema import Schema, shown_name
from drumline.data.survey import Lengths, Survey

MOST_LABELS = 100
"""Labels that the event counts, the most frequent first."""
_IN_LINE = 4
"""Scripts and labels that a line of the table has."""


@dataclass(frozen=True)
class Split:
    """One split: what reading it said, and what looking through it did."""

    schema: Schema
    survey: Survey | None
    """None: it was not looked through."""
    repeated: Same = field(default_factory=lambda: Same(0))
    repeated_loosely: Same = field(default_factory=lambda: Same(0))
    contradicted: int = 0
    """Texts that have several labels."""

    @classmethod
    def of(cls, schema: Schema, survey: Survey | None) -> Split:
        """Count what comes again."""
        if survey is None:
            return cls(schema, None)
        contradicted = survey.loose.contradicted(survey.label_hashes) if survey.labels else 0
        return cls(schema, survey, survey.exact.repeated(), survey.loose.repeated(), contradicted)

    @property
    def lengths(self) -> Lengths | None:
        """Tokens, where they were counted."""
        return None if self.survey is None else self.survey.lengths

    def event(self) -> dict[str, Any]:
        """What the event says of this split."""
        facts: dict[str, Any] = {"rows": self.schema.num_rows, "bad_rows": self.schema.num_bad}
        if self.schema.encodings:
            facts["encodings"] = dict(self.schema.encodings)
        seen = self.survey
        if seen is None:
            return facts
        facts |= {
            "looked_at": seen.num_seen,
            "empty": seen.num_empty,
            "first_empty": seen.first_empty,
            "duplicates": self.repeated.num_rows,
            "duplicate_rows": [list(pair) for pair in self.repeated.examples],
            "duplicates_normalised": self.repeated_loosely.num_rows,
            "contradictory": self.contradicted,
            "unreadable": seen.num_unreadable,
            "scripts": dict(seen.scripts.most_common()),
        }
        if seen.first_unreadable is not None:
            facts["first_unreadable"] = dict(zip(("row", "problem"), seen.first_unreadable, strict=True))
        if seen.labels:
            facts["num_labels"] = len(seen.labels)
            facts["labels"] = _named(Counter(dict(seen.labels.most_common(MOST_LABELS))))
        if seen.lengths is not None:
            facts["tokens"] = asdict(seen.lengths)
        return facts


@dataclass(frozen=True)
class DataReport:
    """Both splits, and what they share."""

    train: Split
    evaluation: Split | None
    seconds: float = 0.0
    leaked: Same = field(default_factory=lambda: Same(0))
    """Held-out rows whose text is in the training rows."""
    leaked_loosely: Same = field(default_factory=lambda: Same(0))
    only_train: tuple[str, ...] = ()
    """Labels that no held-out row has."""
    only_eval: tuple[str, ...] = ()

    @classmethod
    def of(cls, train: Split, evaluation: Split | None, seconds: float) -> DataReport:
        """Compare the splits."""
        one, other = train.survey, None if evaluation is None else evaluation.survey
        if one is None or other is None:
            return cls(train, evaluation, seconds)
        return cls(
            train,
            evaluation,
            seconds,
            other.exact.found_in(one.exact),
            other.loose.found_in(one.loose),
            tuple(sorted(one.labels.keys() - other.labels.keys())),
            tuple(sorted(other.labels.keys() - one.labels.keys())),
        )

    @property
    def unit(self) -> str:
        """What is counted: documents have no columns."""
        return "rows" if self.train.schema.columns else "documents"

    def splits(self) -> Iterator[tuple[str, Split]]:
        """Both, or the one that there is, by name."""
        yield "train", self.train
        if self.evaluation is not None:
            yield "eval", self.evaluation

    def event(self) -> dict[str, Any]:
        """The record that goes into events.jsonl; no text of the data is in it."""
        facts: dict[str, Any] = {"seconds": round(self.seconds, 3), "unit": self.unit}
        facts |= {name: split.event() for name, split in self.splits()}
        if self.evaluation is not None and self.evaluation.survey is not None:
            facts["leakage"] = {
                "rows": self.leaked.num_rows,
                "rows_normalised": self.leaked_loosely.num_rows,
                "examples": [list(pair) for pair in self.leaked_loosely.examples],
            }
            facts["labels_only_in_train"] = [shown_name(name) for name in self.only_train[:MOST_LABELS]]
            facts["labels_only_in_eval"] = [shown_name(name) for name in self.only_eval[:MOST_LABELS]]
        return facts

    def table(self) -> list[str]:
        """Lines for the screen: what is always told, and what else is there; of documents one line a split."""
        if self.unit == "documents":
            return [f"data.{name}: {_documents(split)}" for name, split in self.splits()]
        splits = [split for _, split in self.splits()]
        rows = [("data report", [name for name, _ in self.splits()])]
        for title, always, told in _LINES:
            values = [told(split) for split in splits]
            if always or any(values):
                rows.append((title or self.unit, [value or "-" for value in values]))
        widths = [max(len(row[1][i]) for row in rows) for i in range(len(splits))]
        return [
            f"{title:<21}" + "  ".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
            for title, values in rows
        ]

    def warnings(self) -> Iterator[str]:
        """What should be seen to, with row numbers (from 0) and never a text."""
        for name, split in self.splits():
            seen = split.survey
            if seen is None:
                continue
            if not seen.whole:
                yield f"data.{name}: {seen.num_seen:,} of {seen.num_rows:,} rows were looked at; the rest may hold more"
            if seen.num_empty:
                yield f"data.{name}: {_rows(seen.num_empty)} without text, the first is row {seen.first_empty}"
            if seen.first_unreadable is not None:
                row, problem = seen.first_unreadable
                yield f"data.{name}: {_rows(seen.num_unreadable)} cannot be read, the first is row {row}: {problem}"
            if split.contradicted:
                yield f"data.{name}: {split.contradicted:,} texts stand there several times, with different labels"
        yield from self._between()

    def _between(self) -> Iterator[str]:
        if self.leaked_loosely.num_rows:
            held_out, trained = self.leaked_loosely.examples[0]
            yield (
                f"data.eval: {_rows(self.leaked_loosely.num_rows)} in data.train too, {self.leaked.num_rows:,} to the "
                f"letter (row {held_out} is row {trained} there): the evaluation is partly of what was trained on"
            )
        if self.only_train:
            yield f"data.eval has no row with {_labels(self.only_train)}: their results will be missing"
        if self.only_eval:
            yield f"data.train has no row with {_labels(self.only_eval)}: they cannot be learned"


def _documents(split: Split) -> str:
    lengths, same = split.lengths, split.repeated.num_rows
    count = split.schema.num_rows or 0
    told = f"{count:,} document{'s' * (count != 1)}"
    if lengths is not None:
        told += f", {lengths.total:,} tokens ({lengths.shortest:,} to {lengths.longest:,}, median {lengths.median:,})"
    return told + (f"; {same:,} like an earlier one" if same else "")


def _named(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by labels that can be shown; those that cannot be are one together."""
    named: Counter[str] = Counter()
    for name, count in counts.items():
        named[shown_name(name)] += count
    return dict(named)


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _labels(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _IN_LINE:,} more" if len(names) > _IN_LINE else ""
    return f"label {', '.join(dict.fromkeys(shown_name(name) for name in names[:_IN_LINE]))}{more}"


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    ordered = sorted(_named(counts).items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ordered) - _IN_LINE:,} more" if len(ordered) > _IN_LINE else ""
    return ", ".join(f"{name} {count / total:.1%}" for name, count in ordered[:_IN_LINE]) + more


def _duplicates(split: Split) -> str:
    if split.survey is None:
        return ""
    loose = split.repeated_loosely.num_rows - split.repeated.num_rows
    return f"{split.repeated.num_rows:,}" + (f" and {loose:,} alike" if loose else "")


def _lengths(told: Callable[[Lengths], str]) -> Callable[[Split], str]:
    return lambda split: "" if split.lengths is None else told(split.lengths)


def _seen(told: Callable[[Survey], str]) -> Callable[[Split], str]:
    return lambda split: "" if split.survey is None else told(split.survey)


def _counted(split: Split) -> str:
    """How many texts the tokens are of, where those are not all."""
    seen, lengths = split.survey, split.lengths
    return "" if seen is None or lengths is None or lengths.num_texts >= seen.num_rows else f"{lengths.num_texts:,}"


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


# What a line tells, whether it does so where there is nothing to tell, and how; without a title: the unit.
_LINES: tuple[tuple[str, bool, Callable[[Split], str]], ...] = (
    ("", True, lambda split: "?" if split.schema.num_rows is None else f"{split.schema.num_rows:,}"),
    ("looked at", False, _seen(lambda seen: "" if seen.whole else f"{seen.num_seen:,}")),
    ("left out, bad", False, lambda split: _number(split.schema.num_bad)),
    ("cannot be read", False, _seen(lambda seen: _number(seen.num_unreadable))),
    ("empty", False, _seen(lambda seen: _number(seen.num_empty))),
    ("duplicates", True, _duplicates),
    ("tokens", False, _lengths(lambda each: f"{each.total:,}")),
    ("in so many texts", False, _counted),
    (
        "shortest, median",
        False,
        _lengths(lambda each: f"{each.shortest:,}, {each.median:,}"),
    ),
    ("95%, longest", False, _lengths(lambda each: f"{each.longest_95:,}, {each.longest:,}")),
    ("longer than context", False, _lengths(lambda each: _number(each.num_cut))),
    ("tokens cut off", False, _lengths(lambda each: _number(each.num_lost))),
    ("learned", False, _lengths(lambda each: "" if each.learned is None else f"{each.learned:.1%}")),
    ("scripts", False, _seen(lambda seen: _shares(seen.scripts) if seen.scripts else "")),
    ("labels", False, _seen(lambda seen: _shares(seen.labels) if seen.labels else "")),
)
