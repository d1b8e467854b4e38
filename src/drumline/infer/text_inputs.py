"""Rows with texts as padded ids, for models that read a whole row at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drumline.data.tokenizers import Ids, ModelRow, Tokenizer, kept_of
from drumline.errors import ConfigError, DataError
from drumline.infer.prompt_text import is_absent
from drumline.infer.records import Prepared, Row
from drumline.models.decoder import Decoder
from drumline.models.huggingface import is_pretrained, learned_positions, text_config

UNCUT = 1 << 40
"""More tokens than any row has."""
PROBES = ("The naïve cafés cost 10 €.", "Two words, and 日本")


class Encoded(NamedTuple):
    """One row's ids; type_ids tell two texts apart, `places` is the task's own."""

    ids: Ids
    type_ids: Ids | None = None
    places: Any = None


@dataclass(frozen=True)
class Limit:
    """Most tokens of a row, and what becomes of longer ones."""

    tokens: int | None
    too_long: Literal["error", "cut"]

    def problem_of(self, num_tokens: int) -> str | None:
        """What is wrong with a row of so many tokens; None where it fits, or is to be cut."""
        if self.tokens is None or num_tokens <= self.tokens or self.too_long == "cut":
            return None
        return f"it has {num_tokens:,} tokens, and the model takes {self.tokens:,}"

    def cuts(self, num_tokens: int) -> bool:
        """Whether a row of so many tokens is to be cut."""
        return num_tokens > self.longest

    @property
    def longest(self) -> int:
        """To how many tokens rows are cut."""
        return UNCUT if self.tokens is None or self.too_long == "error" else self.tokens


def limit_of(model: nn.Module, context: int | None, too_long: Literal["error", "cut"]) -> Limit:
    """What a task's settings say, else what the model takes. Raises ConfigError as `checked_context` does."""
    return Limit(longest_row(model) if context is None else checked_context(model, context), too_long)


def checked_context(model: nn.Module, context: int) -> int:
    """The context itself. Raises ConfigError for more than the model has positions for, where it has a table of them.

    Others, such as rotary ones, go on.
    """
    most = model.shape.context if isinstance(model, Decoder) else None
    if is_pretrained(model) and learned_positions(model) is not None:
        most = longest_row(model)
    if most is not None and context > most:
        raise ConfigError(
            f"task.context is {context:,}, and the model has positions for {most:,} tokens",
            f"--set task.context={most}, or leave it out",
        )
    return context


def longest_row(model: nn.Module) -> int | None:
    """Most tokens that a transformers model takes, by its configuration; None where nothing says so."""
    if not is_pretrained(model):
        return None
    stated = getattr(text_config(model), "max_position_embeddings", None)
    if not isinstance(stated, int) or stated <= 0:
        return None
    if learned_positions(model) is not None:
        for table in model.modules():
            # RoBERTa counts positions from the one after its padding id.
            if isinstance(table, nn.Embedding) and table.num_embeddings == stated and table.padding_idx is not None:
                tokens = model.get_input_embeddings()  # type: ignore[operator]
                return stated if table is tokens else stated - table.padding_idx - 1
    return stated


def pad_id_of(model: nn.Module, tokenizer: Tokenizer) -> int:
    """The id that fills rows up: the model's own, where it has one, since some look for it; else the tokenizer's."""
    own = text_config(model).pad_token_id if is_pretrained(model) else None
    return tokenizer.pad_id if own is None else int(own)


def field_of(values: Mapping[str, Any], name: str) -> str:
    """The text in a row's field; numbers are written out. Raises DataError, whose problem is the row's."""
    value = values.get(name)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_absent(value):
        return str(value)
    fix = "correct the row, or name the column (rows.text, rows.text_pair)"
    if name not in values:
        raise DataError(f"the row has no field {name!r}", fix)
    what = "empty" if is_absent(value) else f"a {type(value).__name__}, not text"
    raise DataError(f"the row's field {name!r} is {what}", fix)


class RowEncoder:
    """Many texts, or pairs of texts, in the tokenizer's template at once; equal to its `encode_row`.

    Tokenizers encode many texts on all cores, but without the template's own ids, which are found by trying.
    """

    def __init__(self, tokenizer: Tokenizer, *, pair: bool) -> None:
        self._tokenizer = tokenizer
        self._pair = pair
        self._second_type = 1
        self._parts = self._find()

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None, longest: int = UNCUT) -> list[Encoded]:
        """A row of at most `longest` ids for each text, with the second one of `pairs` where there are pairs."""
        if self._parts is None:
            seconds: Sequence[str | None] = pairs or [None] * len(texts)
            rows = [self._tokenizer.encode_row(a, b, longest) for a, b in zip(texts, seconds, strict=True)]
            return [Encoded(row.ids, row.type_ids if self._pair else None) for row in rows]
        first = self._tokenizer.encode_batch(texts)
        second = [None] * len(first) if pairs is None else self._tokenizer.encode_batch(pairs)
        return [self._joined(self._parts, a, b, longest) for a, b in zip(first, second, strict=True)]

    def _joined(self, parts: Sequence[ModelRow], first: Ids, second: Ids | None, longest: int) -> Encoded:
        room = max(0, longest - sum(len(part.ids) for part in parts))
        if second is None:
            return Encoded(np.concatenate([parts[0].ids, first[:room], parts[1].ids]))
        keep, keep_second = kept_of(len(first), len(second), room)
        pieces = [parts[0], ModelRow(first[:keep], np.zeros(keep, dtype=np.int64)), parts[1]]
        pieces += [ModelRow(second[:keep_second], np.full(keep_second, self._second_type)), parts[2]]
        return Encoded(np.concatenate([p.ids for p in pieces]), np.concatenate([p.type_ids for p in pieces]))

    def _find(self) -> list[ModelRow] | None:
        """What stands before, between and after the texts; None where that depends on the texts."""
        texts: tuple[str, ...] = PROBES if self._pair else PROBES[:1]
        whole = self._tokenizer.encode_row(texts[0], texts[1] if self._pair else None, UNCUT)
        parts, begin = [], 0
        for own in self._tokenizer.encode_batch(texts):
            places = range(begin, len(whole.ids) - len(own) + 1)
            found = next((p for p in places if np.array_equal(whole.ids[p : p + len(own)], own)), None)
            if found is None:
                return None
            parts.append(ModelRow(whole.ids[begin:found], whole.type_ids[begin:found]))
            begin = found + len(own)
            self._second_type = int(whole.type_ids[found])  # RoBERTa tells no text apart
        parts.append(ModelRow(whole.ids[begin:], whole.type_ids[begin:]))
        for number, text in enumerate(PROBES):
            second = PROBES[1 - number] if self._pair else None
            wanted = self._tokenizer.encode_row(text, second, UNCUT)
            encoded = None if second is None else self._tokenizer.encode(second)
            made = self._joined(parts, self._tokenizer.encode(text), encoded, UNCUT)
            types = wanted.type_ids if made.type_ids is None else made.type_ids
            if not (np.array_equal(made.ids, wanted.ids) and np.array_equal(types, wanted.type_ids)):
                return None
        return parts


class TextRows:
    """Rows of a text, or of two, brought into the model's form."""

    def __init__(self, tokenizer: Tokenizer, columns: Sequence[str], limit: Limit) -> None:
        self._tokenizer = tokenizer
        self._columns = columns
        self._limit = limit
        self._encode = RowEncoder(tokenizer, pair=len(columns) > 1)

    def __call__(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """A row for each, or what is wrong with it."""
        found: list[str] = []
        texts: list[tuple[str, ...]] = []
        for row in rows:
            if row.problem is not None:
                found.append(row.problem)
                continue
            try:
                texts.append(tuple(field_of(row.values, name) for name in self._columns))
                found.append("")
            except DataError as error:
                found.append(error.problem)
        pairs = [each[1] for each in texts] if len(self._columns) > 1 else None
        encoded = iter(self._encode([each[0] for each in texts], pairs, self._limit.longest))
        return [problem or self._fitted(row.number, next(encoded)) for row, problem in zip(rows, found, strict=True)]

    def _fitted(self, number: int, encoded: Encoded) -> Prepared | str:
        return self._limit.problem_of(len(encoded.ids)) or prepared_ids(number, encoded, self._tokenizer)


def prepared_ids(number: int, encoded: Encoded, tokenizer: Tokenizer) -> Prepared:
    """A row of these ids; of an empty text something must stay that can be attended to."""
    if not len(encoded.ids):
        one = np.array([tokenizer.pad_id], dtype=np.int64)
        encoded = Encoded(one, None if encoded.type_ids is None else np.zeros(1, dtype=np.int64), encoded.places)
    return Prepared(number, len(encoded.ids), len(encoded.ids), encoded)


@dataclass(frozen=True)
class PaddedIds:
    """A batch on the device: rows begin at the left."""

    ids: Tensor
    """int64 [B, width]."""
    lengths: Tensor
    """int64 [B]; of what is filled in for a row 1."""
    type_ids: Tensor | None

    @property
    def mask(self) -> Tensor:
        """What is no padding, bool [B, width]."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]


def padded(rows: Sequence[Prepared | None], width: int, pad_id: int, device: torch.device) -> PaddedIds:
    """Rows of Encoded as one batch, each exactly `width` tokens wide; None becomes a row of one padding id."""
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    lengths = np.ones(len(rows), dtype=np.int64)
    types: Ids | None = None
    for place, row in enumerate(rows):
        if row is None:
            continue
        encoded: Encoded = row.payload
        lengths[place] = len(encoded.ids)
        ids[place, : len(encoded.ids)] = encoded.ids
        if encoded.type_ids is not None:
            types = np.zeros_like(ids) if types is None else types
            types[place, : len(encoded.ids)] = encoded.type_ids
    as_tensor: Callable[[Any], Tensor] = lambda values: torch.from_numpy(values).to(device)  # noqa: E731
    return PaddedIds(as_tensor(ids), as_tensor(lengths), None if types is None else as_tensor(types))
