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
    allowed = f"0 to {size - 1}" + (f", or {ignore}" if ignore is not None else "")
    _refuse(wrong, values, what, allowed, fix)


def check_fractions(labels: Tensor, num_labels: int) -> None:
    """Raise ValueRangeError unless labels are float [B, num_labels], each from 0 to 1."""
    if not labels.is_floating_point() or labels.dim() != 2 or labels.shape[1] != num_labels:
        raise ValueRangeError(
            f"labels are {labels.dtype} of shape {list(labels.shape)}, and floats [rows, {num_labels}] are needed",
            "give each row one number a class: 1.0 for a class that it has, 0.0 for the others",
        )
    outside = ~((labels >= 0) & (labels <= 1))  # compared this way round, so that NaN is outside too
    _refuse(outside, labels, "labels", "0 to 1", "give 1.0 for a class that a row has, else 0.0")


def check_numbers(labels: Tensor, num_targets: int) -> None:
    """Raise ValueRangeError unless labels are [B] or [B, num_targets], and finite."""
    width = labels.shape[1:].numel() if labels.dim() else 0
    if labels.dim() not in (1, 2) or width != num_targets or labels.is_complex():
        raise ValueRangeError(
            f"labels are {labels.dtype} of shape {list(labels.shape)}, and [rows, {num_targets}] is needed",
            "give each row as many numbers as the task has targets",
        )
    _refuse(~labels.isfinite(), labels, "labels", "finite numbers", "leave such rows out of the data")


def _refuse(wrong: Tensor, values: Tensor, what: str, allowed: str, fix: str) -> None:
    """Raise ValueRangeError that names the first wrong value, if there is one."""
    places = wrong.nonzero()
    if len(places) == 0:
        return
    place = tuple(places[0].tolist())
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    raise ValueRangeError(f"{what}{list(place)} is {values[place].item()}{more}; allowed are {allowed}", fix)
