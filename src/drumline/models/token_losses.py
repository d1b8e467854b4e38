"""From logits of some tokens to their cross-entropy and its gradient, in few passes over memory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

logger = logging.getLogger("drumline")


class Tail(NamedTuple):
    """What a model does to the products of its output layer: times scale, then cap * tanh(. / cap)."""

    scale: float = 1.0
    cap: float | None = None
    """None: no tanh."""


PLAIN = Tail()

Piece = Callable[[Tensor, Tensor, int, float, float | None, torch.dtype], tuple[Tensor, Tensor]]


def capped(products: Tensor, tail: Tail) -> Tensor:
    """The logits of an output layer's products."""
    if tail.scale != 1.0:
        products = products * tail.scale
    return products if tail.cap is None else tail.cap * torch.tanh(products / tail.cap)


def losses_of(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Each token's cross-entropy [N], 0 where its label is ignored; logits [N, vocabulary], labels [N]."""
    counts = labels != ignored
    picked = logits.gather(1, labels.where(counts, 0)[:, None])
    return (logits.logsumexp(-1, keepdim=True) - picked).squeeze(1).where(counts, 0.0)


def losses_and_gradient(
    products: Tensor, labels: Tensor, ignored: int, scale: float, cap: float | None, narrow: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Each token's cross-entropy [N] at least in float32, and its gradient [N, vocabulary] in `narrow`.

    products: [N, vocabulary] of the output layer, of which the gradient is. Rows whose label is ignored give zeros.
    """
    wide = torch.promote_types(products.dtype, torch.float32)
    counts = labels != ignored
    columns = labels.where(counts, 0)[:, None]
    logits = products if (scale, cap) == PLAIN else capped(products.to(wide), Tail(scale, cap))
    logs = torch.log_softmax(logits, -1, dtype=wide)
    picked = logs.gather(1, columns)
    # Labels' places come last, so that all before is one pass over memory where this is compiled.
    gradient = logs.masked_fill(~counts[:, None], -torch.inf).exp_()
    # From the logarithm: a probability near 1, less 1, would lose its digits.
    at_labels = torch.expm1(picked).where(counts[:, None], 0.0)
    if cap is not None:
        slope = 1 - (logits / cap).square()
        gradient *= slope
        at_labels *= slope.gather(1, columns)
    if scale != 1.0:
        gradient *= scale
        at_labels *= scale
    gradient = gradient.to(narrow).scatter_(1, columns, at_labels.to(narrow))
    return (-picked).squeeze(1).where(counts, 0.0), gradient


def pieces_for(device: torch.device) -> Piece:
    """The function above; on a GPU with Triton compiled by itself, which spares most of its passes over memory.

    Inside of code that is compiled as a whole it is a part of that.
    """
    if device.type != "cuda" or torch.compiler.is_compiling():
        return losses_and_gradient
    return _compiled()


@functools.cache
def _compiled() -> Piece:
    """Compiled on first use, for any number of tokens; the plain one, with a warning, where that fails."""
    compiled: Piece = torch.compile(losses_and_gradient)

    def any_length(
        products: Tensor, labels: Tensor, ignored: int, scale: float, cap: float | None, narrow: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        for tensor in (products, labels):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(products, labels, ignored, scale, cap, narrow)

    try:
        logits = torch.zeros(4, 8, dtype=torch.bfloat16, device="cuda")
        with torch.compiler.set_stance("default"):  # a trial may run uncompiled, and this is to find out
            any_length(logits, torch.zeros(4, dtype=torch.int64, device="cuda"), -100, 1.0, None, logits.dtype)
    except Exception as error:  # a machine without Triton or a C compiler still trains
        logger.warning("the loss is not compiled, and slower than it could be: %s", str(error).partition("\n")[0])
        return losses_and_gradient
    return any_length
