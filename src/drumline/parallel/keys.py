"""Names of weights as the bare model has them, whatever wraps it or a part of it now or did when they were saved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from drumline.parallel.optimized import OptimizedDataParallel
from drumline.parallel.saved_names import kept_names, only_kept

V = TypeVar("V")

WRAPPED = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What torch.compile, FSDP and checkpoint_wrapper call the module that they wrap; nobody else has such names."""

INNER = "module"
"""What these call it. A user may have a part of that name too, which stays."""
INNER_IS_WRAPPED = (DataParallel, DistributedDataParallel, OptimizedDataParallel)

BESIDE = ".n_averaged"
"""The one value that a wrapper has itself: the counter of torch's AveragedModel (as a leaf of a Tree)."""

MOST_NAMES = 3
"""Names of each sort that an error lists."""

Tree = dict[str, Any]
"""Names cut at their dots: a Tree by each inner part, and under a dot and the last part the whole name."""


def bare_name(model: nn.Module, name: str) -> str:
    """The name that a parameter or buffer of this model would have if nothing in it were wrapped."""
    kept: list[str] = []
    module: nn.Module | None = model
    for part in name.split("."):
        if part == inner_name(module):
            module = child(module, part)
            continue
        while (inner := inner_name(module)) is not None:  # its own hook has taken the wrapper's name out already
            module = child(module, inner)
        kept.append(part)
        module = child(module, part)
    return ".".join(kept)


def inner_name(module: nn.Module | None) -> str | None:
    """What a wrapper calls the module that it wraps; None for a module that is no wrapper."""
    if module is None:
        return None
    if isinstance(module, INNER_IS_WRAPPED):
        return INNER
    return next((name for name in WRAPPED if name in module._modules), None)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without what is around the whole of it."""
    while (inner := child(model, inner_name(model) or "")) is not None:
        model = inner
    return model


def child(module: nn.Module | None, name: str) -> nn.Module | None:
    """The submodule of that name, if there is one."""
    return None if module is None else module._modules.get(name)


def bare_keys(model: nn.Module, values: Mapping[str, V]) -> dict[str, V]:
    """Values by the bare model's names; they are given by the model's own, with wrappers."""
    return {bare_name(model, name): value for name, value in values.items()}


def own_keys(model: nn.Module, values: Mapping[str, V]) -> dict[str, V]:
    """Back from the bare model's names to the model's own; other names stay as they are."""
    own = {bare_name(model, name): name for name in (*places(model), *model.state_dict())}
    return {own.get(name, name): value for name, value in values.items()}


def fitting(model: nn.Module, saved: Mapping[str, V]) -> dict[str, V]:
    """What was saved by the names of the bare model, each of which is found. Raises ValueError as `matched` does.

    Where only a part of the model is saved, this is all that is wanted.
    """
    wanted = list(only_kept(model, {bare_name(model, name): name for name in model.state_dict()}))
    return {name: saved[found] for name, found in matched(saved, wanted, tied_names(model)).items()}


def load_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Load what was saved of this model, whatever wraps it or did. Raises ValueError as `matched` does."""
    weights = OrderedDict(own_keys(model, fitting(model, saved)))
    # Versions, by which modules know their older forms; that all names are found says that it is the newest.
    weights._metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(weights, strict=kept_names(model) is None)


def places(model: nn.Module) -> dict[str, Any]:
    """Parameters and buffers by each name that they have in the model."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def tied_names(model: nn.Module) -> dict[str, list[str]]:
    """For each bare name of a tensor that has several all of these."""
    found: dict[int, list[str]] = {}
    for name, value in places(model).items():
        found.setdefault(id(value), []).append(bare_name(model, name))
    return {name: names for names in found.values() if len(names) > 1 for name in names}


def matched(
    saved: Iterable[str],
    wanted: Sequence[str],
    tied: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, str]:
    """For each wanted name, which are a bare model's, the saved one; wrappers may have been around any part of it.

    Only what a wrapper calls its module is left out: `module` where it is all that there is, and only where names fit
    better without. tied: names of one tensor, of which one will do. Raises ValueError, with names of both sorts, where
    one that is wanted is missing or one that was saved is not wanted.
    """
    fit = best_fit(tree_of(saved), tree_of(wanted))
    pairs = dict(fit.pairs)
    for name in fit.missing:
        known = next((pairs[other] for other in tied.get(name, ()) if other in fit.pairs), None)
        if known is not None:
            pairs[name] = known
    missing = [name for name in fit.missing if name not in pairs]
    if missing or fit.unexpected:
        parts = []
        if missing:
            parts.append(f"{len(missing)} of the model's {len(wanted)} names are missing ({some(missing)})")
        if fit.unexpected:
            parts.append(f"{len(fit.unexpected)} names are not the model's ({some(fit.unexpected)})")
        raise ValueError(", and ".join(parts))
    return pairs


def some(names: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


class Fit(NamedTuple):
    """How saved names fall on wanted ones."""

    pairs: dict[str, str]
    """Saved name by wanted name."""
    missing: list[str]
    unexpected: list[str]

    @property
    def misfits(self) -> int:
        """Names without a partner."""
        return len(self.missing) + len(self.unexpected)


def tree_of(names: Iterable[str]) -> Tree:
    """Names without what wrappers alone have in them. Raises ValueError where two come to the same."""
    root: Tree = {}
    for name in names:
        *path, last = name.split(".")
        node = root
        for part in path:
            if part not in WRAPPED:
                node = node.setdefault(part, {})
        other = node.setdefault(f".{last}", name)
        if other != name:
            raise ValueError(f"{other} and {name} are the same weight without their wrappers")
    return root


def best_fit(saved: Tree, wanted: Tree) -> Fit:
    """Part by part; a `module` that holds everything is left out where more names fit without it."""
    found = part_by_part(saved, wanted)
    if found.misfits and INNER in saved and saved.keys() <= {INNER, BESIDE}:
        without = best_fit(saved[INNER], wanted)
        if without.misfits < found.misfits:
            return without
    return found


def part_by_part(saved: Tree, wanted: Tree) -> Fit:
    """What has the same name in both belongs together."""
    total = Fit({}, [], [])
    for part, value in wanted.items():
        if part not in saved:
            total.missing.extend(leaves({part: value}))
        elif isinstance(value, str):
            total.pairs[value] = saved[part]
        else:
            inside = best_fit(saved[part], value)
            total.pairs.update(inside.pairs)
            total.missing.extend(inside.missing)
            total.unexpected.extend(inside.unexpected)
    for part, value in saved.items():
        if part not in wanted:
            total.unexpected.extend(leaves({part: value}))
    return total


def leaves(tree: Tree) -> Iterator[str]:
    """The whole names in it."""
    for value in tree.values():
        if isinstance(value, str):
            yield value
        else:
            yield from leaves(value)
