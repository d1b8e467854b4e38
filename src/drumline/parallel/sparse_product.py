"""The product of a 2:4 sparse linear layer in training, by torch's own kernels, also in compiled code."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 8
"""The kernels take a number of rows that is a multiple of it, in half precision."""


@torch.library.custom_op("drumline::sparse_product", mutates_args=())
def sparse_product(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """Multiply x, [rows, in], by the sparse weight, to [rows, out]; transposed: x, [rows, out], to [rows, in].

    weight: [out, in], dense. In each of its tiles of 4 by 4 at most two weights of a row and of a column count, chosen
    from the largest down, so that the transposed weight is 2:4 sparse too (Hubara et al. 2021). Gradients go to
    all weights, straight through. An operator of our own, since torch cannot trace those that choose and pack; it packs
    anew in the backward pass, and keeps nothing. What torch packs while it chooses is not used: on Hopper it is not
    what cuSPARSELt reads, and products come out wrong without an error (torch 2.11).
    """
    *_, chosen = torch._sparse_semi_structured_tile(weight, "largest_abs_values_greedy")
    kept = torch._sparse_semi_structured_apply_dense(weight, chosen)
    packed = torch._cslt_compress(kept.t().contiguous() if transposed else kept)
    padded = F.pad(x, (0, 0, 0, -len(x) % ROWS))
    return torch._cslt_sparse_mm(packed, padded.t(), bias=bias, transpose_result=True)[: len(x)]


@sparse_product.register_fake
def _shape(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    return x.new_empty(len(x), weight.shape[1 if transposed else 0])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, bool], output: Tensor) -> None:
    x, weight, bias, _ = inputs
    ctx.save_for_backward(x, weight)
    ctx.has_bias = bias is not None


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    gradient = gradient.contiguous()
    for_x, for_weight, for_bias, _ = ctx.needs_input_grad
    return (
        sparse_product(gradient, weight, None, True) if for_x else None,
        gradient.t() @ x if for_weight else None,
        gradient.sum(0) if ctx.has_bias and for_bias else None,
        None,
    )


sparse_product.register_autograd(_gradients, setup_context=_keep)
