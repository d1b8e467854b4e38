"""Ids and labels are checked on the CPU: on a GPU a bad one kills the context, with a message that names nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drumline.errors import DataError, ValueRangeError
from drumline.parallel.strategy import Batch

IGNORED = -100
"""Label that no loss counts (torch's and transformers' default)."""


def tensor_of(batch: Batch, name: str) -> Tensor:
    """The tensor of that name; raises DataError where the batch is no mapping or lacks it."""
    value = batch.get(name) if isinstance(batch, Mapping) else None
    if not isinstance(value, Tensor):
        found = f"has {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else f"is a {type(batch).__name__}"
        raise DataError(
            f"a batch needs the tensor '{name}', and this one {found}",
            f"let the data set or its collate function give a mapping with '{name}', or give your own loss=",
        )
    return value


def check_ids(ids: Tensor, size: int, what: str) -> None:
    """Raise ValueRangeError unless every id is a whole number in [0, size)."""
    fix = f"use the tokenizer that belongs to the model, or a model with as many rows as there are ids (it has {size})"
    _check(ids, size, what, None, fix)


def check_labels(labels: Tensor, num_classes: int, ignore: int = IGNORED) -> None:
    """Raise ValueRangeError unless every label is a whole number in [0, num_classes) or `ignore`."""
    fix = f"number the classes from 0, mark what is not to be learned with {ignore}, or give the model more classes"
    _check(labels, num_classes, "labels", ignore, fix)


def _check(values: Tensor, size: int, what: str, ignore: int | None, fix: str) -> None:
    if values.is_floating_point() or values.dtype == torch.bool:
        raise ValueRangeError(f"{what} are {values.dtype}, and whole numbers are needed", "convert them with .long()")
    if values.numel() == 0:
        return
    lowest, highest = torch.aminmax(values)
    if lowest >= 0 and highest < size:
        return
    wrong = (values < 0) | (values >= size)
    if ignore is not None:
        wrong &= values != ignore
    places = wrong.nonzero()
    if len(places) == 0:
        return
    place = tuple(places[0].tolist())
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    allowed = f"0 to {size - 1}" + (f", or {ignore}" if ignore is not None else "")
    raise ValueRangeError(f"{what}{list(place)} is {int(values[place])}{more}; allowed are {allowed}", fix)
