"""The parts of a model that each lie whole on one device: its layers, and what is before and after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from drumline.errors import ConfigError


@dataclass(frozen=True)
class Unit:
    """One part, or several that share a weight."""

    names: tuple[str, ...]
    """Of its modules or lone tensors, the first one in the model first."""
    num_bytes: int
    """Of its parameters and buffers, in the types that they have; what is shared counts once."""
    computes: bool
    """Whether it has parameters. What has none, as tables of positions have, goes with the model's beginning."""

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def units_of(model: nn.Module, packed: Mapping[type[nn.Module], float] | None = None) -> list[Unit]:
    """All parts in the model's order; the model may be on the meta device, with its weights tied.

    packed: share of its bytes that a layer of that type will have once it is quantised.
    """
    whole = _layer_classes(model)
    groups: list[list[str]] = []
    owners: dict[int, list[str]] = {}
    for name, module in _parts(model, "", whole):
        tensors = list(module.parameters()) if module is not None else [model.get_parameter(name)]
        group = next((owners[id(tensor)] for tensor in tensors if id(tensor) in owners), None)
        if group is None:
            group = []
            groups.append(group)
        group.append(name)
        for tensor in tensors:
            owners[id(tensor)] = group
    return [_unit(model, names, packed or {}) for names in groups]


def _layer_classes(model: nn.Module) -> set[str]:
    """Names of the classes that transformers says are never cut; else what the longest list of modules is made of."""
    named = getattr(model, "_no_split_modules", None)
    if named:
        return set(named)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)]
    if not lists:
        return set()
    longest = max(lists, key=lambda module: sum(p.numel() for p in module.parameters()))
    return {name for name, _ in Counter(type(layer).__name__ for layer in longest).most_common()}


def _parts(module: nn.Module, name: str, whole: set[str]) -> Iterator[tuple[str, nn.Module | None]]:
    """Modules that are not cut; of those that are, the tensors that they have themselves, with None."""
    before = f"{name}." if name else ""
    for own, _ in module.named_parameters(recurse=False):
        yield f"{before}{own}", None
    for child_name, child in module.named_children():
        is_whole = type(child).__name__ in whole
        if not is_whole and any(type(below).__name__ in whole for below in child.modules()):
            yield from _parts(child, f"{before}{child_name}", whole)
        else:
            yield f"{before}{child_name}", child


def _unit(model: nn.Module, names: Sequence[str], packed: Mapping[type[nn.Module], float]) -> Unit:
    sizes: dict[int, float] = {}
    parameters = 0
    for name in names:
        try:
            modules = list(model.get_submodule(name).modules())
        except AttributeError:  # a lone tensor, which get_parameter knows
            lone = model.get_parameter(name)
            sizes[id(lone)] = lone.nbytes
            parameters += 1
            continue
        for module in modules:
            for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
                share = packed.get(type(module), 1.0) if tensor.ndim == 2 else 1.0
                sizes.setdefault(id(tensor), tensor.nbytes * share)
            parameters += len(list(module.parameters(recurse=False)))
    return Unit(tuple(names), round(sum(sizes.values())), parameters > 0)


def placed_by_hand(units: Sequence[Unit], by_hand: Mapping[str, int], num_devices: int) -> dict[str, int]:
    """The device number of each name, from beginnings of module names; the longest that fits counts.

    Beginnings end where a name's part ends: `layers.1` is not the beginning of `layers.10`; "" is that of all names.
    What shares a weight goes where the first of them goes. Raises ConfigError for a device that there is not, for
    beginnings that no module has, that cut a layer in two, and for modules without a place.
    """
    where = "split.device_map"
    too_high = sorted({device for device in by_hand.values() if not 0 <= device < num_devices})
    if too_high:
        raise ConfigError(
            f"{where} names GPU {too_high[0]}, and a replica has {num_devices}, which are counted from 0",
            "set split.gpus to as many as the map names",
        )
    names = [name for unit in units for name in unit.names]
    strange = [key for key in by_hand if not any(_begins(key, name) for name in names)]
    cut = [(key, name) for key in strange for name in names if _begins(name, key)]
    if cut:
        raise ConfigError(
            f"{where} cuts {cut[0][1]} in two with {cut[0][0]}", f"name {cut[0][1]} itself, which lies on one GPU whole"
        )
    if strange:
        raise ConfigError(
            f"{where} names modules that the model does not have: {_some(strange)}",
            f"this model's are {_some(names)}; beginnings of such names do too",
        )
    placed: dict[str, int] = {}
    lacking: list[str] = []
    for unit in units:
        for name in unit.names:
            fitting = [key for key in by_hand if _begins(key, name)]
            if fitting:
                placed[name] = by_hand[max(fitting, key=len)]
            elif unit.computes:
                lacking.append(name)
            else:
                placed[name] = by_hand[min(by_hand, key=lambda key: by_hand[key])]
    if lacking:
        raise ConfigError(f"{where} gives no GPU for {_some(lacking)}", "add them, or '' for all that is not named")
    return placed | {name: placed[unit.name] for unit in units for name in unit.names}


def _begins(key: str, name: str) -> bool:
    return not key or name == key or name.startswith(f"{key}.")


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
