"""Records as tensors: what each task reads of a row, under the names that Hugging Face's models take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from drumline.data.images import Pixels
from drumline.data.labels import Classes, as_list, as_numbers
from drumline.data.order import Rows, epoch_order
from drumline.data.packing import NO_LABEL
from drumline.data.source import without_first
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import DataError

Record = Mapping[str, Any]
Row = dict[str, Any]
Features = Callable[[Record], Row]
"""Turns a record into named tensors of one row. Raises DataError for a record that cannot be read."""
ReadLabel = Callable[[Any], Tensor]


def text_of(record: Record, role: str) -> str:
    """A record's text; numbers are written out. Raises DataError where there is none."""
    value = record.get(role)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    what = "is missing" if value is None else f"is a {type(value).__name__}, not text"
    raise DataError(f"{role} {what}", f"correct the row, or name the column with texts in data.columns.{role}")


class TextFeatures:
    """`text` and, where `pair` says so, `text_pair` as input_ids and attention_mask, int64 [T]; `label` as labels.

    type_ids: also give token_type_ids, for models that tell the two texts apart by them. label None: no labels.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: int,
        label: ReadLabel | None,
        *,
        pair: bool = False,
        type_ids: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._label = label
        self._pair = pair
        self._type_ids = type_ids

    def __call__(self, record: Record) -> Row:
        """Encode one record."""
        pair = text_of(record, "text_pair") if self._pair else None
        encoded = self._tokenizer.encode_row(text_of(record, "text"), pair, self._context)
        row = _inputs(encoded.ids, self._tokenizer)
        if self._type_ids:
            row["token_type_ids"] = torch.zeros_like(row["input_ids"])
            row["token_type_ids"][: len(encoded.type_ids)] = torch.from_numpy(encoded.type_ids)
        if self._label is not None:
            row["labels"] = self._label(record["label"])
        return row


class WordFeatures:
    """`tokens`, a list of words, and `tags`, a class each: the tag stands at a word's first id, -100 at all others."""

    def __init__(self, tokenizer: Tokenizer, context: int, classes: Classes) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._classes = classes

    def __call__(self, record: Record) -> Row:
        """Encode one record."""
        words, tags = [str(word) for word in as_list(record["tokens"])], as_list(record["tags"])
        if len(words) != len(tags):
            raise DataError(f"{len(words)} tokens have {len(tags)} tags", "give each token one tag")
        ids, numbers = self._tokenizer.encode_words(words, self._context)
        tag_numbers = self._classes.numbers_of(tags)
        inputs = _inputs(ids, self._tokenizer)
        labels = torch.full_like(inputs["input_ids"], NO_LABEL)
        before = None
        for place, word in enumerate(numbers):
            if word is not None and word != before:
                labels[place] = tag_numbers[word]
                before = word
        return {**inputs, "labels": labels}


class SourceTargetFeatures:
    """`source` as input_ids and attention_mask, `target` as labels, int64 [T] each, in the tokenizer's template."""

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self._tokenizer = tokenizer
        self._context = context

    def __call__(self, record: Record) -> Row:
        """Encode one record."""
        source = self._tokenizer.encode_row(text_of(record, "source"), None, self._context)
        target = self._tokenizer.encode_row(text_of(record, "target"), None, self._context)
        return {**_inputs(source.ids, self._tokenizer), "labels": torch.from_numpy(target.ids)}


class PairFeatures:
    """`anchor` and `positive`, each as a mapping of input_ids and attention_mask, int64 [T]."""

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self._tokenizer = tokenizer
        self._context = context

    def __call__(self, record: Record) -> Row:
        """Encode one record."""
        return {
            role: _inputs(self._tokenizer.encode_row(text_of(record, role), None, self._context).ids, self._tokenizer)
            for role in ("anchor", "positive")
        }


class ImageFeatures:
    """`image` as pixel_values, float32 [C, H, W], and `label` as labels."""

    def __init__(self, pixels: Pixels, label: ReadLabel | None) -> None:
        self._pixels = pixels
        self._label = label

    def __call__(self, record: Record) -> Row:
        """Read one image."""
        row: Row = {"pixel_values": self._pixels(record["image"])}
        if self._label is not None:
            row["labels"] = self._label(record["label"])
        return row


class ColumnFeatures:
    """Every column as it is: whole numbers int64, others float32, lists of numbers as vectors, texts as texts."""

    def __call__(self, record: Record) -> Row:
        """Convert one record."""
        return {name: _tensor(value) for name, value in record.items()}


class NumberFeatures:
    """The named columns as one vector `numbers`, float32 [columns], and `label` as labels."""

    def __init__(self, columns: Sequence[str], label: ReadLabel) -> None:
        self._columns = tuple(columns)
        self._label = label

    def __call__(self, record: Record) -> Row:
        """Convert one record."""
        return {
            "numbers": torch.cat([self._numbers(record, name) for name in self._columns]),
            "labels": self._label(record["label"]),
        }

    def _numbers(self, record: Record, name: str) -> Tensor:
        try:
            return as_numbers(record.get(name)).reshape(-1)
        except DataError as error:
            raise DataError(f"column {name}: {error.problem}", "correct the row, or leave the column out") from None


def _inputs(ids: Ids, tokenizer: Tokenizer) -> Row:
    # Of an empty text something must stay that can be attended to: a mean over nothing is 0/0.
    inputs = torch.from_numpy(ids) if len(ids) else torch.tensor([tokenizer.pad_id])
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}


def _tensor(value: Any) -> Any:
    if isinstance(value, bool | int):
        return torch.tensor(value)
    if isinstance(value, float) or (isinstance(value, list) and not any(isinstance(item, str) for item in value)):
        return as_numbers(value)
    return value


class Prepared(Dataset[Row]):
    """A map-style data set of records as rows of tensors; `name` is what errors call it.

    The order of an epoch and its rows are the record data set's own, where it has them.
    """

    def __init__(self, rows: Any, features: Features, name: str) -> None:
        self.rows = rows
        self._features = features
        self._name = name

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of one epoch, of which a data set with weights may have more or fewer than it holds."""
        return int(getattr(self.rows, "rows_per_epoch", len(self.rows)))

    def epoch_order(self, seed: int, epoch: int, *, shuffle: bool) -> Rows:
        """The rows of one epoch in their order."""
        own = getattr(self.rows, "epoch_order", None)
        if own is None:
            return epoch_order(len(self.rows), seed, epoch, shuffle=shuffle)
        return own(seed, epoch, shuffle=shuffle)  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Row:
        return self._row(index, self.rows[index])

    def __getitems__(self, indexes: list[int]) -> list[Row]:
        """Read several rows at once."""
        at_once = getattr(self.rows, "__getitems__", None)
        records = [self.rows[index] for index in indexes] if at_once is None else at_once(indexes)
        return [self._row(index, record) for index, record in zip(indexes, records, strict=True)]

    def _row(self, index: int, record: Record) -> Row:
        try:
            return self._features(record)
        except DataError as error:
            raise DataError(f"{self._name}, row {index}: {error.problem}", error.fix) from error


class PreparedStream(IterableDataset[Row]):
    """A stream of records as a stream of rows of tensors, to be cut as the records can be cut."""

    def __init__(self, rows: Any, features: Features, name: str, first: int = 0) -> None:
        """first: the number of the first row in its part."""
        self._rows = rows
        self._features = features
        self._name = name
        self._first = first

    def shard(self, num_shards: int, index: int) -> PreparedStream:
        """The part `index` of `num_shards`."""
        return PreparedStream(self._rows.shard(num_shards, index), self._features, self._name)

    def skip(self, count: int) -> Any:
        """Leave out the first rows; NotImplemented where the records cannot be skipped."""
        rest = without_first(self._rows, count)
        return NotImplemented if rest is None else PreparedStream(rest, self._features, self._name, self._first + count)

    def set_epoch(self, epoch: int) -> None:
        """Tell the records, where they want to know."""
        if hasattr(self._rows, "set_epoch"):
            self._rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Row]:
        for number, record in enumerate(self._rows, self._first):
            try:
                yield self._features(record)
            except DataError as error:
                raise DataError(f"{self._name}, row {number} of this part: {error.problem}", error.fix) from error
