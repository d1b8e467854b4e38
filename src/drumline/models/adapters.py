"""LoRA and DoRA adapters inside a transformers model, by peft; its own weights stay as they are and keep their place.

The layers are put into the model itself, which stays of its class, so that names are the same under every strategy:
`q_proj.weight` becomes `q_proj.base_layer.weight` beside `q_proj.lora_A.default.weight` and `q_proj.lora_B...`.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.config.problem import listed
from drumline.errors import ConfigError, MissingExtra
from drumline.models.adapter_files import TRANSPOSED, alpha_of, base_identity, read_adapter
from drumline.models.adapter_files import write_adapter as write_adapter
from drumline.models.embedding_noise import add_embedding_noise
from drumline.models.huggingface import Head
from drumline.parallel.keys import tied_names
from drumline.parallel.saved_names import kept_names as kept_names
from drumline.parallel.saved_names import note_kept

NAME = "default"
"""What peft calls an adapter that has no name of its own."""
BASE = ".base_layer"
"""What stands in the name of a layer's own weights once an adapter is beside them."""
CLASSIFIERS = ("token_classification", "sequence_classification", "image_classification")
"""Heads that are trained whole: their classes are the data's own, and they are often new."""

logger = logging.getLogger("drumline")


def with_adapter(model: nn.Module, config: HuggingFaceModel, head: Head) -> nn.Module:
    """Put into the model what `config` asks for besides its weights, in place: quantised weights, adapter, noise.

    With an adapter all weights but its own, those of `train_also` and a classifier's head are frozen, and checkpoints
    hold only what is not. Adapter weights are float32 and depend on torch's seed alone; B is zero, so that the model
    computes what it did, unless the adapter goes on from `initial`. Random streams are left as they were. Raises
    ConfigError for names that the model has not, and for an adapter that is of another model.
    """
    if config.embedding_noise:
        add_embedding_noise(body_of(model), config.embedding_noise)
    if config.adapter is None:
        if config.quantise != "none":
            raise ConfigError(
                f"model.quantise is {config.quantise}, and quantised weights cannot be trained",
                "add model.adapter, or leave model.quantise out",
            )
        return model
    whole = whole_modules(model, config.adapter, head)
    targets = target_names(model, config.adapter, whole)
    if config.quantise != "none":
        from drumline.models.quantised import quantise

        everything = target_names(model, AdapterConfig(), whole)
        quantise(model, everything, config.quantise)
    inject(model, config.adapter, targets)
    kept = trained_names(model, whole)
    if not config.random_weights:  # those come from nowhere but the checkpoint
        base = base_identity(config)
        turned = any(layer.fan_in_fan_out for layer in layers_of(model).values())
        note_kept(model, kept, {**base, TRANSPOSED: "yes"} if turned else base)
    if config.adapter.initial is not None:
        own = model.state_dict()
        wanted = {name: own[name] for name in own if name in kept}
        load_adapter(wanted, read_adapter(config.adapter.initial.expanduser(), config, wanted))
    return model


def body_of(model: nn.Module) -> Any:
    """The transformers model itself, of one that gives one vector a row."""
    return getattr(model, "body", model)


def whole_modules(model: nn.Module, adapter: AdapterConfig, head: Head) -> list[str]:
    """Names of the modules that are trained whole. Raises ConfigError for an end that none has."""
    known = [name for name, module in model.named_modules() if name and any(True for _ in module.parameters())]
    found = [name for end in adapter.train_also for name in ending(known, end, "model.adapter.train_also")]
    # Running statistics move whether or not the rest is trained, and plain peft keeps them of whole modules only.
    found += [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if head in CLASSIFIERS:
        body = body_of(model).base_model_prefix
        # A pooling layer is the head's too: a language model's file seldom has it, so that it is new.
        found += [name for name in known if name.partition(".")[0] != body or name == f"{body}.pooler"]
    return [name for name in dict.fromkeys(found) if not any(name.startswith(f"{other}.") for other in found)]


def target_names(model: nn.Module, adapter: AdapterConfig, whole: Sequence[str]) -> list[str]:
    """Names of the linear layers beside which matrices are put. Raises ConfigError for an end that none has."""
    output = body_of(model).get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if is_linear(module)}
    apart = {name for name in linear if any(name == other or name.startswith(f"{other}.") for other in whole)}
    if adapter.targets == "all":
        found = [name for name, module in linear.items() if module is not output and name not in apart]
        if not found:
            raise ConfigError(
                f"model.adapter has no layer to stand beside: a {type(model).__name__} has no linear layer that is "
                "not trained whole",
                "leave model.adapter out",
            )
        return found
    found = [name for end in adapter.targets for name in ending(list(linear), end, "model.adapter.targets")]
    if both := [name for name in found if name in apart]:
        raise ConfigError(
            f"model.adapter.targets names {both[0]}, which is trained whole",
            "take it out of model.adapter.targets, or out of train_also",
        )
    return list(dict.fromkeys(found))


def is_linear(module: nn.Module) -> bool:
    """Whether it is a linear layer: torch's, or GPT-2's, which keeps its matrix the other way round."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def ending(names: Sequence[str], end: str, key: str) -> list[str]:
    """The names with this end. Raises ConfigError, which names the key, where there are none."""
    found = [name for name in names if name == end or name.endswith(f".{end}")]
    if not found:
        ends = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
        near = difflib.get_close_matches(end, ends, n=3, cutoff=0.3) or ends[:8]
        raise ConfigError(f"{key}: no module of the model is named {end}", f"name such as {listed(near)}")
    return found


def inject(model: nn.Module, adapter: AdapterConfig, targets: list[str]) -> None:
    """Let peft put its layers in the place of these, and freeze all else. Raises MissingExtra without peft."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtra("peft", "hf") from error
    settings = LoraConfig(
        r=adapter.rank,
        lora_alpha=alpha_of(adapter),
        lora_dropout=adapter.dropout,
        target_modules=targets,
        use_dora=adapter.kind == "dora",
        fan_in_fan_out=any(type(model.get_submodule(name)).__name__ == "Conv1D" for name in targets),
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch.initial_seed())  # the host's stream alone
        inject_adapter_in_model(settings, model)
    for p in model.parameters():
        if p.requires_grad and p.dtype.itemsize < 4:  # small updates would be lost, whatever the base is kept in
            p.data = p.data.float()


def trained_names(model: nn.Module, whole: Sequence[str]) -> frozenset[str]:
    """Let what is trained whole want a gradient; the names of all that a checkpoint has to hold."""
    buffers = []
    for name in whole:
        module = model.get_submodule(name)
        buffers += [f"{name}.{each}" for each, _ in module.named_buffers()]
        for p in module.parameters():
            p.requires_grad_(p.is_floating_point())
    widen(model)
    tied = tied_names(model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    names = {other for name in trained for other in tied.get(name, [name])}
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    logger.info("adapter: %d of the model's %d tensors are trained, %d values", len(trained), num_of(model), trainable)
    return frozenset(names | {name for name in buffers if name in model.state_dict()})


def widen(model: nn.Module) -> None:
    """Keep what is trained in float32, where small updates are not lost.

    To what is around a module of those nothing changes: its inputs are widened, and its outputs come in the type that
    they came in before. The adapter's own matrices are float32 already, and peft's layers cast for them.
    """
    narrow = {id(p): p.dtype for p in model.parameters() if p.requires_grad and p.dtype.itemsize < 4}
    for module in model.modules():
        dtypes = [narrow[id(p)] for p in module.parameters(recurse=False) if id(p) in narrow]
        if dtypes:  # also of a layer that is tied to one
            module.register_forward_pre_hook(partial(_cast_inputs, dtype=torch.float32))
            module.register_forward_hook(partial(_cast_output, dtype=dtypes[0]))
    for p in model.parameters():
        if id(p) in narrow:
            p.data = p.data.float()


def _cast_inputs(module: nn.Module, inputs: tuple[Any, ...], *, dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(_cast(value, dtype) for value in inputs)


def _cast_output(module: nn.Module, inputs: tuple[Any, ...], output: Any, *, dtype: torch.dtype) -> Any:
    return _cast(output, dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def num_of(model: nn.Module) -> int:
    """Number of its parameters as tensors."""
    return sum(1 for _ in model.parameters())


def layers_of(model: nn.Module) -> dict[str, Any]:
    """The layers with an adapter by name; none where the model has none."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@torch.no_grad()
def load_adapter(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Put these values into the model's own tensors; one that has no values on this rank gets another rank's later."""
    for name, value in weights.items():
        if not own[name].is_meta:
            own[name].copy_(value)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes without its matrices, as in evaluation; what is trained whole stays as it is."""
    layers = list(layers_of(model).values())
    # Not by peft's own call, which also lets parameters want no gradient, for whoever has looked at that before.
    before, training = [layer._disable_adapters for layer in layers], [m for m in model.modules() if m.training]
    for layer in layers:
        layer._disable_adapters = True
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer._disable_adapters = value
        for module in training:
            module.training = True


@torch.no_grad()
def merged(model: nn.Module, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The weights of the model without an adapter that computes what this one does, by its bare names.

    weights: instead of the model's own, by the same names; those that are not among them are the model's. Sums are
    made in float32 (or wider) and rounded to each weight's own type; quantised weights come as the numbers that they
    stand for.
    """
    given = {**model.state_dict(), **(weights or {})}
    layers = layers_of(model)
    packed: dict[str, Any] = {name: module for name, module in model.named_modules() if hasattr(module, "packed")}
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        owner, _, last = name.rpartition(".")
        layer = owner.partition(".lora_")[0].removesuffix(BASE)
        if ".lora_" in owner or (owner in packed and last == "scales"):
            continue
        if last in ("weight", "packed") and layer in layers:
            found[f"{layer}.weight"] = merged_weight(layer, layers[layer], given)
        elif last == "packed" and owner in packed:
            found[f"{owner}.weight"] = packed_weight(owner, packed[owner], given)
        else:
            found[f"{layer}.{last}" if layer in layers else name] = value
    return found


def packed_weight(name: str, layer: Any, weights: Mapping[str, Tensor]) -> Tensor:
    """The matrix that a packed one among these weights stands for."""
    from drumline.models.quantised import unpack

    return unpack(weights[f"{name}.packed"], weights[f"{name}.scales"], layer.kind, layer.dtype)


def merged_weight(name: str, layer: Any, weights: Mapping[str, Tensor]) -> Tensor:
    """One layer's matrix with its adapter in it (Hu et al. 2021; of DoRA equation 5 of Liu et al. 2024)."""
    a, b = (weights[f"{name}.lora_{part}.{NAME}.weight"] for part in "AB")
    base = layer.base_layer
    is_packed = hasattr(base, "packed")
    own = packed_weight(f"{name}{BASE}", base, weights) if is_packed else weights[f"{name}{BASE}.weight"]
    wide = torch.promote_types(own.dtype, torch.float32)
    turned = bool(layer.fan_in_fan_out)
    total = own.to(wide).t() if turned else own.to(wide)
    delta = (b.to(total.device, wide) @ a.to(total.device, wide)) * layer.scaling[NAME]
    total = total + delta
    size = weights.get(f"{name}.lora_magnitude_vector.{NAME}.weight")
    if size is not None:
        total = total * (size.to(total.device, wide) / torch.linalg.vector_norm(total, dim=1)).unsqueeze(1)
    found: Tensor = (total.t() if turned else total).to(own.dtype).contiguous()
    return found
