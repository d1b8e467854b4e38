"""What each part of a model costs: timed on the device in a shorter model of the same shape, else by its bytes."""

from __future__ import annotations

import copy
import inspect
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from drumline.infer.layer_units import Unit, units_of

ROWS, WIDTH = 8, 128
"""Shape of the batch that is timed, in tokens."""
TIMES = 5
"""Passes that are timed, after two that are not; the median counts."""
MOST_LAYERS = 8
"""Of the shorter model."""

Signature = tuple[Any, ...]
logger = logging.getLogger(__name__)


def costs_by_bytes(model: nn.Module, units: Sequence[Unit]) -> list[float]:
    """Bytes that a pass reads of each part: all its weights, but of tables of embeddings next to nothing; pure.

    Writing one token at a time takes as long as reading the weights does.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    multiplied = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    costs = []
    for unit in units:
        tensors = {id(p): p for name in unit.names for p in _parameters(model, name)}
        read = [p.nbytes for key, p in tensors.items() if key not in tables or key in multiplied]
        costs.append(float(sum(read)))
    return costs


def _parameters(model: nn.Module, name: str) -> list[nn.Parameter]:
    try:
        return list(model.get_submodule(name).parameters())
    except AttributeError:  # a lone tensor
        return [model.get_parameter(name)]


def measured_costs(
    model: nn.Module, units: Sequence[Unit], make: Callable[[Any], nn.Module], device: torch.device
) -> list[float] | None:
    """Seconds of each part in a pass of ROWS x WIDTH tokens; None, with a warning, where that cannot be measured.

    model: of transformers, on the meta device. make: gives such a model, with random weights on `device`, from a
    configuration. It gets one with as few layers as have one of each kind, at most MOST_LAYERS.
    """
    signatures = [_signature(model, unit, place) for place, unit in enumerate(units)]
    try:
        shorter = make(_shortened(model, units, signatures))
        found = _timed(shorter, device)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        logger.warning("the layers cannot be timed, so that their bytes decide: %s", str(error).partition("\n")[0])
        return None
    kinds = {_signature(shorter, unit, place): found[unit.name] for place, unit in enumerate(units_of(shorter))}
    if any(signature not in kinds for signature, unit in zip(signatures, units, strict=True) if unit.computes):
        logger.warning("the layers are of more than %d kinds, so that their bytes decide", MOST_LAYERS)
        return None
    return [kinds.get(signature, 0.0) for signature in signatures]


def _signature(model: nn.Module, unit: Unit, place: int) -> Signature:
    """What makes two layers cost the same: class, shapes, and the kind of attention; other parts go by their name."""
    name, _, number = unit.name.rpartition(".")
    if not number.isdecimal():
        return (unit.name,)
    kinds = getattr(_text(model.config), "layer_types", None) or []
    layer = model.get_submodule(unit.name)
    shapes = tuple((key, tuple(value.shape)) for key, value in layer.named_parameters())
    return (name, type(layer).__name__, shapes, kinds[int(number)] if int(number) < len(kinds) else None)


def _text(config: Any) -> Any:
    return config.get_text_config()


def _shortened(model: nn.Module, units: Sequence[Unit], signatures: Sequence[Signature]) -> Any:
    """The configuration with the fewest layers among which is one of each kind."""
    first: dict[Signature, int] = {}
    for unit, signature in zip(units, signatures, strict=True):
        number = unit.name.rpartition(".")[2]
        if number.isdecimal():
            first.setdefault(signature, int(number))
    count = min(max(first.values(), default=0) + 1, MOST_LAYERS)
    config = copy.deepcopy(model.config)
    text = _text(config)
    text.num_hidden_layers = count
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:count]
    return config


def _timed(model: nn.Module, device: torch.device) -> Mapping[str, float]:
    """Median seconds of each part, by name."""
    marks: dict[str, list[Any]] = {}
    hooks = []
    for unit in units_of(model):
        marks[unit.name] = []
        for name in unit.names:
            try:
                module = model.get_submodule(name)
            except AttributeError:  # a lone tensor
                continue
            marked = marks[unit.name]
            hooks.append(module.register_forward_pre_hook(lambda *_, to=marked: to.append(_mark(device))))
            hooks.append(module.register_forward_hook(lambda *_, to=marked: to.append(_mark(device))))
    limit = int(_text(model.config).vocab_size)
    ids = torch.arange(ROWS * WIDTH, device=device).remainder(limit).view(ROWS, WIDTH)
    options: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    known = inspect.signature(model.forward).parameters
    options |= {"use_cache": False} if "use_cache" in known else {}
    options |= {"logits_to_keep": 1} if "logits_to_keep" in known else {}
    times: dict[str, list[float]] = {name: [] for name in marks}
    with torch.inference_mode():
        for turn in range(2 + TIMES):
            for marked in marks.values():
                marked.clear()
            model(**options)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn >= 2:
                for name, marked in marks.items():
                    times[name].append(sum(map(_between, marked[::2], marked[1::2])))
    for hook in hooks:
        hook.remove()
    return {name: statistics.median(values) for name, values in times.items()}


def _mark(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _between(begin: Any, end: Any) -> float:
    return float(end - begin) if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1000
