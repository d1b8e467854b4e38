"""Cross-entropy of an output layer without all logits in memory: some tokens at a time, gradients at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 2**27
"""Most logits at a time: 0.25 GiB in bfloat16, twice that in float32."""

ROW_MULTIPLE = 128
"""Tokens of a chunk are a multiple of it where there are that many: whole tiles of a product."""


class SummedLoss(NamedTuple):
    """What a model gives where it computes its loss itself."""

    total: Tensor
    """Cross-entropy summed over labels that count, a scalar."""
    hits: Tensor
    """Labels whose logit is the highest, a scalar; 0 where a gradient is wanted, since it would cost a pass."""


def chunked_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor, ignored: int = -100) -> SummedLoss:
    """The sum of F.cross_entropy(x @ weight.T, labels) in float32 (float64 stays), in the products' precision.

    x: [..., width], weight: [vocabulary, width], labels: [...] int64. The gradient is computed with the loss, chunk by
    chunk, so that the three products of each are made once (as in Liger Kernel, Hsu et al. 2024); it can be taken once.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    flat, targets = x.flatten(0, -2), labels.flatten()
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        total: Tensor = ChunkedCrossEntropy.apply(flat, weight, targets, ignored, dtype)  # type: ignore[no-untyped-call]
        return SummedLoss(total, torch.zeros((), dtype=torch.int64, device=x.device))
    wide = torch.promote_types(dtype, torch.float32)
    total, hits = x.new_zeros((), dtype=wide), targets.new_zeros(())
    transposed = weight.to(dtype).t()
    for rows, wanted in chunks(flat, targets, weight.shape[0]):
        logits = rows.to(dtype) @ transposed
        losses, _ = token_losses(logits.to(wide), wanted, ignored)
        total, hits = total + losses.sum(), hits + (logits.argmax(-1) == wanted).sum()
    return SummedLoss(total, hits)


def chunks(x: Tensor, labels: Tensor, num_logits: int) -> list[tuple[Tensor, Tensor]]:
    """Equal runs of tokens, but for the last one, each with at most CHUNK_LOGITS logits where a token has no more."""
    most = max(1, CHUNK_LOGITS // num_logits)
    if most > ROW_MULTIPLE:
        most -= most % ROW_MULTIPLE
    return list(zip(x.split(most), labels.split(most), strict=True))


def token_losses(logits: Tensor, labels: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Each token's cross-entropy, 0 where its label is ignored, and its log-sum-exp [N, 1]."""
    normaliser = logits.logsumexp(-1, keepdim=True)
    counts = labels != ignored
    picked = logits.gather(1, labels.where(counts, 0)[:, None])
    return (normaliser - picked).squeeze(1).where(counts, 0.0), normaliser


class ChunkedCrossEntropy(torch.autograd.Function):
    """Gives the sum and keeps the gradients of x and weight, which the backward pass only multiplies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, labels: Tensor, ignored: int, dtype: torch.dtype) -> Tensor:
        """Take x [N, width], weight [vocabulary, width], labels [N]; dtype: of the products."""
        wide = torch.promote_types(dtype, torch.float32)
        # Float16 cannot hold sums over a chunk's tokens that no loss scale has made small yet.
        narrow = torch.float32 if dtype == torch.float16 else dtype
        cast = weight.to(dtype)
        total = x.new_zeros((), dtype=wide)
        for_weight = torch.zeros_like(weight, dtype=wide)
        for_x = []
        for rows, wanted in chunks(x, labels, weight.shape[0]):
            logits = (rows.to(dtype) @ cast.t()).to(wide)
            losses, normaliser = token_losses(logits, wanted, ignored)
            total = total + losses.sum()
            counts = wanted != ignored
            columns = wanted.where(counts, 0)
            gradient = (logits - normaliser).exp()
            gradient[torch.arange(len(wanted), device=x.device), columns] -= 1.0
            gradient = gradient.where(counts[:, None], 0.0).to(narrow)
            for_x.append((gradient @ cast.to(narrow)).to(x.dtype))
            for_weight += gradient.t() @ rows.to(narrow)
        ctx.save_for_backward(torch.cat(for_x), for_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Times the gradient of the sum."""
        (factor,) = gradients
        for_x, for_weight = ctx.saved_tensors
        return for_x * factor.to(for_x.dtype), for_weight * factor.to(for_weight.dtype), None, None, None
