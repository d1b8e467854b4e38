"""Linear layers whose products are computed in float8 or int8 (by torchao) or with 2:4 sparse weights, in place."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config.compute import LinearConfig, Products
from drumline.errors import ConfigError, MissingExtra
from drumline.parallel.compile import find_blocks
from drumline.parallel.sparse_product import sparse_product

logger = logging.getLogger("drumline")

EXTRA = "float8"
"""Name of the optional dependency that brings torchao."""

MULTIPLES = {"float8": 16, "float8_rowwise": 16, "int8": 16, "sparse_24": 128}
"""Both sides of a weight must be multiples of it: tiles of torch._scaled_mm and of the sparse kernels."""

MOST_NAMES = 4
"""Layers that the log names."""

PLAIN = "_drumline_plain"
"""Attribute of a converted layer: names of the attributes that it got."""


def convert_linear(model: nn.Module, settings: LinearConfig, *, compiled: bool = False, emulated: bool = False) -> None:
    """Let the model's linear layers compute their products as the settings say, and log which do.

    Each layer stays the object that it was, with the same parameters and names: only its class changes. What an earlier
    call did is undone first. Left as they are: the output layer, whose errors go straight into the loss, what `skip`
    names, layers with sides that the kernels do not take, and subclasses of nn.Linear. compiled: whether torch.compile
    follows; a warning else. emulated: float8 in the arithmetic of the device, for tests. Raises ConfigError for a
    pattern without a layer and where no layer is left, MissingExtra without torchao.
    """
    restore(model)
    products = settings.products
    if products == "default":
        return
    layers = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    check_patterns(layers, settings)
    left = left_out(model, layers, settings)
    if len(left) == len(layers):
        raise ConfigError(
            f"train.linear.products is {products}, and no linear layer of the {type(model).__name__} can be converted: "
            f"{described(left) or 'it has none'}",
            "set train.linear.products to default, or leave fewer layers out",
        )
    convert = converter(products, emulated=emulated)
    for name, layer in layers.items():
        if name not in left:
            kind, added = convert(layer)
            vars(layer).update(added, **{PLAIN: tuple(added)})
            layer.__class__ = kind
    done = len(layers) - len(left)
    logger.info("%s: %d of %d linear layers; left: %s", products, done, len(layers), described(left) or "none")
    if not compiled:
        logger.warning(
            "train.linear.products is %s without train.compile: rounding the inputs of a product is a pass over them "
            "of its own, which may cost more than the product saves",
            products,
        )


def check_patterns(layers: dict[str, nn.Linear], settings: LinearConfig) -> None:
    """Raise ConfigError for a pattern of `skip` that fits no layer."""
    for number, pattern in enumerate(settings.skip):
        if not any(fnmatchcase(name, pattern) for name in layers):
            raise ConfigError(
                f"train.linear.skip.{number}: '{pattern}' fits no linear layer of the model",
                f"write names of modules, such as {', '.join(list(layers)[:MOST_NAMES])}",
            )


def left_out(model: nn.Module, layers: dict[str, nn.Linear], settings: LinearConfig) -> dict[str, str]:
    """Names of the layers that stay as they are, each with the reason."""
    outputs = output_layers(model, layers)
    multiple = MULTIPLES[settings.products]
    left = {}
    for name, layer in layers.items():
        if layer in outputs:
            left[name] = "output"
        elif any(fnmatchcase(name, pattern) for pattern in settings.skip):
            left[name] = "train.linear.skip"
        elif layer.in_features % multiple or layer.out_features % multiple:
            left[name] = f"sides no multiples of {multiple}"
    return left


def output_layers(model: nn.Module, layers: dict[str, nn.Linear]) -> set[nn.Module]:
    """The model's output layer: what transformers says it is, what is tied to an embedding, or the last layer of all.

    The last one does not count where it is part of a repeated block.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    found: set[nn.Module] = {layer for layer in layers.values() if id(layer.weight) in embeddings}
    if callable(find := getattr(model, "get_output_embeddings", None)) and (head := find()) is not None:
        return found | {head}
    inside = {module for block in find_blocks(model) for module in block.modules()}
    last = next(reversed(layers.values()), None)
    return found if last is None or last in inside else found | {last}


def described(left: dict[str, str]) -> str:
    """The layers that stay as they are, by reason, the first few by name."""
    parts = []
    for reason, number in Counter(left.values()).items():
        names = [name for name, why in left.items() if why == reason][:MOST_NAMES]
        more = f" and {number - len(names)} more" if number > len(names) else ""
        parts.append(f"{', '.join(names)}{more} ({reason})")
    return "; ".join(parts)


def restore(model: nn.Module) -> None:
    """Make converted layers plain ones again."""
    for module in model.modules():
        added = vars(module).pop(PLAIN, None)
        if added is not None:
            for name in added:
                del vars(module)[name]
            module.__class__ = nn.Linear


Converter = Callable[[nn.Linear], tuple[type[nn.Linear], dict[str, Any]]]
"""From a plain layer to the class that replaces its own, and the attributes that this class needs."""


def converter(products: Products, *, emulated: bool) -> Converter:
    """How a layer is converted. Raises MissingExtra without torchao."""
    try:
        if products == "int8":
            return int8_converter()
        if products == "sparse_24":
            return lambda layer: (SparseLinear, {})
        return float8_converter("rowwise" if products == "float8_rowwise" else "tensorwise", emulated=emulated)
    except ImportError as error:
        raise MissingExtra("torchao", EXTRA) from error


def float8_converter(recipe: str, *, emulated: bool) -> Converter:
    """By torchao's recipe; batches with a number of tokens that is no multiple of 16 are padded in each product."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(Float8LinearConfig.from_recipe_name(recipe), pad_inner_dim=True, emulate=emulated)

    def convert(layer: nn.Linear) -> tuple[type[nn.Linear], dict[str, Any]]:
        other = convert_to_float8_training(layer, config=config)
        return type(other), {name: value for name, value in vars(other).items() if name not in vars(layer)}

    return convert


def int8_converter() -> Converter:
    """Inputs, weights and gradients rounded row by row before each of the three products; weights stay as they are."""
    from torchao.prototype.quantized_training import Int8MixedPrecisionTrainingConfig, Int8MixedPrecisionTrainingLinear
    from torchao.prototype.quantized_training.int8_mixed_precision import (
        _Int8MixedPrecisionTrainingLinearFunction as product,
    )

    class Int8Linear(Int8MixedPrecisionTrainingLinear):  # type: ignore[misc]
        """torchao's layer, which alone would compute in float32 under autocast.

        The bias is added here: float32 as it is, it would make theirs give float32, and on a GPU their backward pass
        takes no gradient of another type than the input.
        """

        def forward(self, x: Tensor) -> Tensor:
            """[..., in_features] to [..., out_features]."""
            dtype = computed_in(x, self.weight)
            y: Tensor = product.apply(x.to(dtype), self.weight, None, self.config)
            return y if self.bias is None else y + self.bias.to(dtype)

    config = Int8MixedPrecisionTrainingConfig(module_swap=True)
    return lambda layer: (Int8Linear, {"config": config})


class SparseLinear(nn.Linear):
    """Of each four weights in a row and in a column two count at most; gradients go to all."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        dtype = computed_in(x, self.weight)
        bias = None if self.bias is None else self.bias.to(dtype)
        y: Tensor = sparse_product(x.to(dtype).reshape(-1, self.in_features), self.weight.to(dtype), bias, False)
        return y.view(*x.shape[:-1], self.out_features)


def computed_in(x: Tensor, weight: Tensor) -> torch.dtype:
    """What autocast would compute a product of these in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
