"""A model that is larger than a GPU: which of its layers lie on which, and how it is loaded so."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from drumline.config.inference import InferenceConfig, SplitConfig
from drumline.errors import ConfigError, HardwareError, MissingExtra
from drumline.infer.layer_balance import balanced
from drumline.infer.layer_costs import costs_by_bytes, measured_costs
from drumline.infer.layer_units import Unit, placed_by_hand, units_of
from drumline.infer.model_folder import Places, dtype_of, head_for, placement, refuse_lacking, shape_of
from drumline.plan.replicas import FOR_WEIGHTS

AT_WORST = 0.95
"""Share of a GPU's free memory that weights may take where FOR_WEIGHTS of it does not hold them."""
_PACKED = {"nf4": 0.5 + 4 / 64, "int8": 1.0}
"""Bytes of a quantised value as bitsandbytes keeps it."""
_CLASSES = {
    "causal": "AutoModelForCausalLM",
    "token_classification": "AutoModelForTokenClassification",
    "sequence_classification": "AutoModelForSequenceClassification",
    "image_classification": "AutoModelForImageClassification",
    "embedding": "AutoModel",
}

Device = str | int | torch.device
logger = logging.getLogger(__name__)


def device_map_of(
    model: nn.Module,
    split: SplitConfig,
    devices: Sequence[Device],
    *,
    costs: Callable[[Sequence[Unit]], Sequence[float] | None] | None = None,
    capacities: Sequence[float] = (),
    packed: Mapping[type[nn.Module], float] | None = None,
) -> dict[str, Device]:
    """The device of each part of the model, which may be on the meta device.

    By `split.device_map` where there is one. Else the layers keep their order and are cut so that the slowest device is
    as fast as can be: costs gives what each part costs (none, or None from it: by the bytes of its weights),
    capacities the bytes of each device that weights may take (empty: any). packed: see units_of. What shares a weight
    lies together. Raises ConfigError for a map that does not fit the model, HardwareError where memory does not
    suffice.
    """
    if hasattr(model, "tie_weights"):
        model.tie_weights()  # type: ignore[operator]
    units = units_of(model, packed)
    if split.device_map is not None:
        by_hand = placed_by_hand(units, split.device_map, len(devices))
        return {name: devices[place] for name, place in by_hand.items()}
    at_work = [unit for unit in units if unit.computes]
    known = (costs(units) if costs is not None else None) or costs_by_bytes(model, units)
    weighed = [cost for unit, cost in zip(units, known, strict=True) if unit.computes]
    sizes = [unit.num_bytes for unit in at_work] if capacities else ()
    places = balanced(weighed, len(devices), sizes, capacities)
    where = {unit.name: place for unit, place in zip(at_work, places, strict=True)}
    first = min(places, default=0)
    return {name: devices[where.get(unit.name, first)] for unit in units for name in unit.names}


def load_split(folder: Path, config: InferenceConfig, devices: Sequence[Device]) -> nn.Module:
    """The model of a Hugging Face folder over these devices, in evaluation mode; its inputs go to the first one's.

    Raises MissingExtra without transformers, accelerate or bitsandbytes (for model.quantise), ConfigError for a split
    that cannot be, or a folder that does not hold the model whole, HardwareError where memory does not suffice.
    """
    transformers = _packages()
    there = [torch.device("cuda", each) if isinstance(each, int) else torch.device(each) for each in devices]
    places = Places(folder, None, config.model.trust_remote_code)
    head = head_for(config.task.kind, places)
    auto = getattr(transformers, _CLASSES[head])
    dtype = dtype_of(config, there[0])
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": places.trusted}
    if config.model.attention != "auto":
        options["attn_implementation"] = config.model.attention
    try:
        shape = shape_of(places, head)
        with torch.device("meta"):
            skeleton = auto.from_config(shape, **options)
        packing = placement(config, there[0], dtype).get("quantization_config")
        make = _maker(auto, options, there[0])
        where = _place(skeleton, config, there, make, dtype)
        logger.info("split: %s", describe(where))
        model, lacking = _load(type(skeleton), places, config, where, {"dtype": dtype, "config": shape}, packing)
    except torch.OutOfMemoryError as error:
        raise HardwareError(
            f"the model's weights do not fit: {str(error).partition('.')[0]}",
            "set split.gpus to more, quantise the model (model.quantise), or free the GPUs",
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{folder} could not be loaded as {head.replace('_', ' ')}: {error}",
            "check that the folder is complete and of that kind, and task.kind",
        ) from error
    refuse_lacking(config, head, lacking)
    return model.eval().requires_grad_(False)


def describe(where: Mapping[str, Device]) -> str:
    """One line: how many parts lie on each device, and from which to which."""
    parts: dict[str, list[str]] = {}
    for name, device in where.items():
        parts.setdefault(str(device), []).append(name)
    return "; ".join(f"{device}: {len(names)} parts, {names[0]} to {names[-1]}" for device, names in parts.items())


def _packages() -> Any:
    """Transformers, and accelerate, which moves what passes from one device to the next."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    if find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "hf")
    return transformers


def _maker(auto: Any, options: dict[str, Any], device: torch.device) -> Callable[[Any], Any]:
    """Makes short models with random weights on the device, to be timed."""

    def make(shape: Any) -> Any:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
            return auto.from_config(shape, **options).eval()

    return make


def _place(
    skeleton: nn.Module,
    config: InferenceConfig,
    there: Sequence[torch.device],
    make: Callable[[Any], Any],
    dtype: torch.dtype,
) -> dict[str, Device]:
    """The device map: by time and free memory on GPUs, elsewhere by bytes."""
    split = config.split or SplitConfig()
    packed: dict[type[nn.Module], float] = {}
    if config.model.quantise != "none":
        packed = {nn.Linear: _PACKED[config.model.quantise] / dtype.itemsize}
    on_gpus = all(device.type == "cuda" for device in there)
    free = [torch.cuda.mem_get_info(device)[0] for device in there] if on_gpus else []

    def measure(units: Sequence[Unit]) -> Sequence[float] | None:
        if not on_gpus or packed or len(there) == 1:
            return None
        found = measured_costs(skeleton, units, make, there[0])
        gc.collect()
        torch.cuda.empty_cache()
        return found

    # Timed once: the second look at memory must not measure again.
    costs = measure(units_of(skeleton)) if split.device_map is None else None
    for share in (FOR_WEIGHTS, AT_WORST):
        room = [bytes_free * share for bytes_free in free]
        try:
            return device_map_of(skeleton, split, there, costs=lambda _: costs, capacities=room, packed=packed or None)
        except HardwareError as error:
            if share == AT_WORST:
                raise
            logger.warning("little memory beside the weights: %s", error.problem)
    raise AssertionError("the last share either places the model or raises")


def _load(
    kind: Any,
    places: Places,
    config: InferenceConfig,
    where: Mapping[str, Device],
    options: dict[str, Any],
    packing: Any,
) -> tuple[nn.Module, set[str]]:
    """The model, its weights straight from the files to their devices or made there, and which the files lack."""
    if config.model.attention != "auto":
        options["attn_implementation"] = config.model.attention
    options |= {"device_map": dict(where), "output_loading_info": True, "local_files_only": True}
    used = {torch.device(each) for each in where.values()}
    with _quiet(), torch.random.fork_rng(devices=[device for device in used if device.type == "cuda"]):
        if config.model.random_weights:
            if packing is not None:
                raise ConfigError("random weights are not quantised", "set model.quantise to none")
            torch.manual_seed(config.seed)
            # With no weights at all each is made on its device, as those are that a folder lacks.
            return kind.from_pretrained(None, state_dict={}, **options)[0], set()
        if packing is not None:
            options["quantization_config"] = packing
        model, info = kind.from_pretrained(places.base, use_safetensors=True, weights_only=True, **options)
    return model, set(info["missing_keys"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers' table of weights that were not in the files off the screen; it is an error of ours."""
    from transformers.utils import logging as their_logging

    before = their_logging.get_verbosity()
    their_logging.set_verbosity_error()
    try:
        yield
    finally:
        their_logging.set_verbosity(before)
