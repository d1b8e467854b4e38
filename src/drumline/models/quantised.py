"""Linear layers whose frozen weights are kept in 4 or 8 bits beside an adapter, packed and unpacked by bitsandbytes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from drumline.errors import ConfigError, MissingExtra

Kind = Literal["nf4", "int8"]

BLOCK = 64
"""Values that share a scale, as in QLoRA (Dettmers et al. 2023)."""

logger = logging.getLogger("drumline")


def bitsandbytes() -> ModuleType:
    """The package. Raises MissingExtra where it is not there."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingExtra("bitsandbytes", "quantise") from error
    return bitsandbytes  # type: ignore[no-any-return]


class PackedLinear(nn.Linear):
    """A linear layer whose matrix is packed: half a byte (nf4) or a byte (int8) a value, and a scale a block.

    Both are plain frozen parameters with the matrix's first dimension, since blocks do not cross rows: what sends,
    shards, saves or moves parameters treats them as any others. nf4: values at the quantiles of a normal distribution;
    int8: bitsandbytes' dynamic values (Dettmers 2016). Products are made in the type that autocast asks for, else in
    the input's, and unpacked anew in the backward pass. Scales are not packed a second time, as QLoRA does: that would
    save 0.37 bits a value.
    """

    def __init__(self, linear: nn.Linear, kind: Kind) -> None:
        """linear: the layer whose values are packed, in rows of whole blocks; its bias is taken over and frozen."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.kind = linear.in_features, linear.out_features, kind
        self.dtype = linear.weight.dtype
        packed, scales = pack(linear.weight.detach(), kind)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias
        if linear.bias is not None:
            linear.bias.requires_grad_(False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix that the packed one stands for, in the type that it had."""
        return unpack(self.packed, self.scales, self.kind, self.dtype)

    def reset_parameters(self) -> None:
        """Refuse: what is packed has no values to be made anew."""
        raise ConfigError(
            "quantised weights cannot be made anew where they are on the meta device", "read the model on every rank"
        )

    def forward(self, input: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        product: Tensor = PackedProduct.apply(input.to(dtype), self.packed, self.scales, self.kind)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(dtype)


class PackedProduct(torch.autograd.Function):
    """x @ weight.T for a packed weight, which is kept packed between the passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, scales: Tensor, kind: Kind) -> Tensor:
        """The product in the input's type."""
        ctx.save_for_backward(packed, scales)
        ctx.kind = kind
        with torch.autocast(x.device.type, enabled=False):
            return functional.linear(x, unpack(packed, scales, kind, x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradient of the input; the weight has none."""
        packed, scales = ctx.saved_tensors
        with torch.autocast(gradient.device.type, enabled=False):
            return gradient @ unpack(packed, scales, ctx.kind, gradient.dtype), None, None, None


def pack(weight: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Codes and scales of a matrix [N, K]: uint8 [N, K / 2] (nf4) or [N, K] (int8), and float32 [N, K / BLOCK]."""
    rows, columns = weight.shape
    width = columns // 2 if kind == "nf4" else columns
    if weight.is_meta:
        codes = torch.empty(rows, width, dtype=torch.uint8, device="meta")
        return codes, torch.empty(rows, columns // BLOCK, dtype=torch.float32, device="meta")
    bitsandbytes()  # brings the operators
    wide = weight.float().contiguous()
    if kind == "nf4":
        codes, scales = torch.ops.bitsandbytes.quantize_4bit.default(wide, BLOCK, "nf4", torch.uint8)
    else:
        code = dynamic_code(wide.device)
        codes, scales = torch.ops.bitsandbytes.quantize_blockwise.default(wide, code, BLOCK)
    return codes.view(rows, width), scales.view(rows, -1)


def unpack(packed: Tensor, scales: Tensor, kind: Kind, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K] that codes and scales stand for."""
    rows = packed.shape[0]
    narrow = dtype if dtype in (torch.float32, torch.bfloat16, torch.float16) else torch.float32
    flat = scales.float().view(-1)
    if kind == "nf4":
        shape = [rows, packed.shape[1] * 2]
        unpacked = torch.ops.bitsandbytes.dequantize_4bit.default(packed.view(-1, 1), flat, BLOCK, "nf4", shape, narrow)
    else:
        code = dynamic_code(packed.device)
        unpacked = torch.ops.bitsandbytes.dequantize_blockwise.default(packed, flat, code, BLOCK, narrow)
    return unpacked.to(dtype)  # type: ignore[no-any-return]


_codes: dict[torch.device, Tensor] = {}


def dynamic_code(device: torch.device) -> Tensor:
    """What int8's codes stand for, on the device."""
    if device not in _codes:
        code: Tensor = bitsandbytes().functional.create_dynamic_map()
        _codes[device] = code.to(device)
    return _codes[device]


def quantise(model: nn.Module, names: Sequence[str], kind: Kind) -> None:
    """Pack these linear layers of the model in place; one whose rows are no whole blocks stays as it is.

    Raises ConfigError for layers that keep their matrix the other way round, MissingExtra without bitsandbytes.
    """
    bitsandbytes()
    left, bits = [], 4 if kind == "nf4" else 8
    for name in names:
        linear = model.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise ConfigError(
                f"model.quantise packs torch's linear layers, and {name} is a {type(linear).__name__}",
                "leave model.quantise out for this model",
            )
        if linear.in_features % BLOCK:
            left.append(name)
            continue
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, PackedLinear(linear, kind))
    logger.info("quantise: %d linear layers are kept in %d bits", len(names) - len(left), bits)
    if left:
        logger.warning(
            "quantise: %d layers stay as they are, since their rows are no multiple of %d values, %s among them",
            len(left),
            BLOCK,
            left[0],
        )
