"""Rows of different lengths as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

MULTIPLE = 8
"""Rows are filled up to a multiple of this, where tensor cores work without waste in every precision."""


class Pad:
    """Collate function: rows are mappings of tensors, also nested; a batch has one tensor of them a name.

    pad_ids: value that fills up the tensors of that name, to the batch's longest and then to a multiple of `multiple`,
    but not beyond `longest`. Tensors of other names must have one shape in all rows, and are stacked; what is no
    tensor becomes a list.
    """

    def __init__(self, pad_ids: Mapping[str, int], multiple: int = 1, longest: int | None = None) -> None:
        self._pad_ids = dict(pad_ids)
        self._multiple = multiple
        self._longest = longest

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make one batch of rows."""
        return {name: self._column(name, [row[name] for row in rows]) for name in rows[0]}

    def _column(self, name: str, values: list[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return self(values)
        if not isinstance(values[0], Tensor):
            return values
        if name not in self._pad_ids:
            return torch.stack(values)
        length = -(-max(len(value) for value in values) // self._multiple) * self._multiple
        if self._longest is not None:
            length = max(min(length, self._longest), max(len(value) for value in values))
        filled = values[0].new_full((len(values), length), self._pad_ids[name])
        for number, value in enumerate(values):
            filled[number, : len(value)] = value
        return filled
