"""A batch of any structure cut into balanced parts, one a replica, and the replicas' outputs made one again.

The rows of a batch are those of its first tensor that has more or fewer than one along `dim`. A tensor with as many is
cut; one with a multiple of it (frames of clips, patches of images) is cut in proportion, its rows belonging to the
batch's in order; one with a single row, or without that dimension, goes to every part whole, for it is broadcast. Any
other size has no row that belongs to a row of the batch, and is refused. torch's DataParallel cuts each tensor by
itself: 9 rows on 4 GPUs are 3, 3, 3, and the fourth has keyword arguments of nothing (nnUNet #677).
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from drumline.errors import DataError

SAME = (str, bytes, int, float, complex, torch.Size)
"""Types of which equal values are one value, wherever they come from."""


class Part(NamedTuple):
    """What one replica is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: int
    """Of the batch; 0 where nothing in it has rows."""


def split(args: Sequence[Any], kwargs: Mapping[str, Any], num_parts: int, dim: int = 0, least: int = 1) -> list[Part]:
    """Cut a call's arguments along `dim` into at most num_parts parts, whose rows differ by at most one.

    Fewer rows than num_parts * least make fewer parts; no rows, or nothing that has rows, make one. Lists, tuples,
    NamedTuples, mappings and dataclasses are gone through and made anew, of their own type; a PackedSequence is cut by
    its sequences; all else is handed to every part as it is. Raises DataError, naming the argument, for a tensor that
    has neither the batch's rows, nor a multiple of them, nor one.
    """
    leaves = [*_leaves(tuple(args), "args", dim), *_leaves(dict(kwargs), "kwargs", dim)]
    first = next((leaf for leaf in leaves if leaf.rows != 1), leaves[0] if leaves else None)
    num_rows = first.rows if first is not None else 0
    count = max(1, min(num_parts, num_rows // least))
    if count == 1:
        return [Part(tuple(args), dict(kwargs), num_rows)]
    assert first is not None
    for leaf in leaves:
        if leaf.rows != 1 and (leaf.rows == 0 or leaf.rows % num_rows):
            raise DataError(
                f"{leaf.path} has {leaf.rows} rows along dimension {dim}, and {first.path} {num_rows}: they cannot be "
                "cut alike",
                "give every tensor the batch's rows there; keep what is no batch in the model, as a buffer",
            )
    parts = []
    for start, stop in _bounds(num_rows, count):

        def take(value: Any, start: int = start, stop: int = stop) -> Any:
            return _taken(value, dim, num_rows, start, stop)

        parts.append(Part(rebuilt(tuple(args), take), rebuilt(dict(kwargs), take), stop - start))
    return parts


def to_device(value: Any, device: torch.device) -> Any:
    """Copy all tensors of any structure, without waiting where they are page-locked; structures keep their types."""

    def move(leaf: Any) -> Any:
        return _moved(leaf, device) if isinstance(leaf, Tensor | PackedSequence) else leaf

    return rebuilt(value, move)


def _moved(leaf: Any, device: torch.device) -> Any:
    return leaf.to(device, non_blocking=True)


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed. The given one, and what it holds besides its items, is not touched.

    Other mappings than dicts keep their class and attributes where they can be copied and set, else become dicts; of
    a dataclass no __init__ is run.
    """
    if isinstance(value, Tensor | PackedSequence | str | bytes | torch.Size):
        return change(value)
    if type(value) is dict:
        return {key: rebuilt(item, change) for key, item in value.items()}
    if isinstance(value, Mapping):
        return _filled(value, {key: rebuilt(item, change) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _sequence(value, [rebuilt(item, change) for item in value])
    if _is_record(value):
        return _record(value, {name: rebuilt(item, change) for name, item in _fields(value)})
    return change(value)


def gather(outputs: Sequence[Any], device: torch.device, dim: int = 0) -> Any:
    """Make the replicas' outputs, in their order, one of the same structure, its tensors on `device`.

    Tensors are joined along `dim`, differentiably; tensors without dimensions become a vector, one value a replica, as
    under torch.nn.DataParallel. Mappings (Hugging Face's ModelOutput), dataclasses, NamedTuples, tuples, and lists that
    hold tensors are gone through item by item; lists that hold none, as of texts, are put one after the other. Anything
    else is itself where all replicas gave the same, else a list, one item a replica. Raises DataError where the
    replicas' structures differ, or shapes do not fit.
    """
    return _gathered(list(outputs), device, dim, "output")


class _Leaf(NamedTuple):
    """A tensor, or packed sequences, with rows."""

    path: str
    rows: int


def _leaves(value: Any, path: str, dim: int) -> Iterator[_Leaf]:
    """All that has rows, in the order in which it is met."""
    if isinstance(value, PackedSequence):
        yield _Leaf(path, int(value.batch_sizes[0]))
    elif isinstance(value, Tensor):
        if value.dim() > dim:
            yield _Leaf(path, value.shape[dim])
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]", dim)
    elif isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]", dim)
    elif _is_record(value):
        for name, item in _fields(value):
            yield from _leaves(item, f"{path}.{name}", dim)


def _bounds(num_rows: int, count: int) -> list[tuple[int, int]]:
    """First row and end of each part, the longer ones first."""
    size, longer = divmod(num_rows, count)
    starts = [part * size + min(part, longer) for part in range(count + 1)]
    return list(itertools.pairwise(starts))


def _taken(value: Any, dim: int, num_rows: int, start: int, stop: int) -> Any:
    """What one part gets of a leaf."""
    if isinstance(value, PackedSequence):
        if int(value.batch_sizes[0]) == 1:
            return value
        return pack_sequence(unpack_sequence(value)[start:stop], enforce_sorted=value.unsorted_indices is None)
    if not isinstance(value, Tensor) or value.dim() <= dim or value.shape[dim] == 1:
        return value
    each = value.shape[dim] // num_rows
    return value.narrow(dim, start * each, (stop - start) * each)


def _sequence(like: Any, items: list[Any]) -> Any:
    """A list or tuple of the type of another."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


def _filled(like: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """A copy of a mapping with other values."""
    if not isinstance(like, MutableMapping):
        return items
    filled = copy.copy(like)
    for key, item in items.items():
        filled[key] = item
    return filled


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Name and value of a dataclass's fields, but for those that were never set."""
    names = [field.name for field in dataclasses.fields(value)]
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _record(like: Any, items: Mapping[str, Any]) -> Any:
    """A copy of a dataclass, frozen or not, with other values."""
    made = copy.copy(like)
    for name, item in items.items():
        object.__setattr__(made, name, item)
    return made


def _gathered(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    first = outputs[0]
    if isinstance(first, Tensor | PackedSequence | Mapping | list | tuple) or _is_record(first):
        kinds = {type(output) for output in outputs}
        if len(kinds) > 1 and not isinstance(first, Tensor):
            raise _differ(path, sorted(kind.__name__ for kind in kinds))
    if isinstance(first, PackedSequence):
        sequences = [each for output in outputs for each in unpack_sequence(_moved(output, device))]
        return pack_sequence(sequences, enforce_sorted=False)
    if isinstance(first, Tensor):
        return _joined(outputs, device, dim, path)
    if isinstance(first, torch.Size):
        return _one_or_all(outputs)
    if isinstance(first, Mapping):
        keys = [list(output) for output in outputs]
        if any(set(each) != set(keys[0]) for each in keys):
            raise _differ(path, keys)
        items = {
            key: _gathered([output[key] for output in outputs], device, dim, f"{path}[{key!r}]") for key in keys[0]
        }
        return items if type(first) is dict else _filled(first, items)
    if isinstance(first, list | tuple):
        return _gathered_sequence(outputs, device, dim, path)
    if _is_record(first):
        return _record(
            first,
            {
                name: _gathered([getattr(output, name) for output in outputs], device, dim, f"{path}.{name}")
                for name, _ in _fields(first)
            },
        )
    return _one_or_all(outputs)


def _gathered_sequence(outputs: list[Any], device: torch.device, dim: int, path: str) -> Any:
    """Lists and tuples: item by item, or lists without tensors one after the other."""
    if type(outputs[0]) is list and not any(_holds_tensors(output) for output in outputs):
        return [item for output in outputs for item in output]
    lengths = [len(output) for output in outputs]
    if len(set(lengths)) > 1:
        raise _differ(path, lengths)
    items = [
        _gathered(list(column), device, dim, f"{path}[{number}]")
        for number, column in enumerate(zip(*outputs, strict=True))
    ]
    return _sequence(outputs[0], items)


def _holds_tensors(value: Any) -> bool:
    found = False

    def look(leaf: Any) -> Any:
        nonlocal found
        found = found or isinstance(leaf, Tensor | PackedSequence)
        return leaf

    rebuilt(value, look)
    return found


def _joined(outputs: list[Any], device: torch.device, dim: int, path: str) -> Tensor:
    """Tensors along one dimension, or those without any as a vector."""
    shapes = [tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__ for output in outputs]
    if not all(isinstance(output, Tensor) for output in outputs):
        raise _differ(path, shapes)
    moved = [_moved(output, device) for output in outputs]
    if all(output.dim() == 0 for output in outputs):
        return torch.stack(moved)
    rest = {(*output.shape[:dim], None, *output.shape[dim + 1 :]) for output in outputs if output.dim() > dim}
    if len(rest) > 1 or any(output.dim() <= dim for output in outputs):
        raise _differ(path, shapes)
    return torch.cat(moved, dim)


def _one_or_all(values: list[Any]) -> Any:
    """The value that all replicas gave, or a list of what each did."""
    first = values[0]
    if all(
        value is first or (type(value) is type(first) and isinstance(first, SAME) and value == first)
        for value in values
    ):
        return first
    return values


def _differ(path: str, found: Sequence[Any]) -> DataError:
    return DataError(
        f"the replicas' outputs cannot be made one: {path} is {', '.join(str(each) for each in found)}",
        "return tensors that have a row for each row of the batch, in the same structure from every replica",
    )
