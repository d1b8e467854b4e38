"""Cross-entropy of an output layer without all logits in memory: some tokens at a time, gradients at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drumline.models.token_losses import PLAIN, Tail, capped, losses_and_gradient, losses_of, pieces_for

CHUNK_LOGITS = 2**27
"""Most logits at a time: 0.25 GiB in bfloat16, twice that in float32."""

ROW_MULTIPLE = 128
"""Tokens of a chunk are a multiple of it where there are that many: whole tiles of a product."""


class SummedLoss(NamedTuple):
    """What a model gives where it computes its loss itself."""

    total: Tensor
    """Cross-entropy summed over labels that count, a scalar."""
    correct: Tensor | None
    """Where the label's logit is the highest, bool, of the labels' shape; None where a gradient is wanted, since it
    would cost a pass."""


class Output(NamedTuple):
    """An output layer: logits are tail(x @ weight.T + bias)."""

    weight: Tensor
    """[vocabulary, width]"""
    bias: Tensor | None = None
    """[vocabulary]"""
    tail: Tail = PLAIN


def chunked_cross_entropy(
    x: Tensor, output: Output, labels: Tensor, places: Tensor | None = None, ignored: int = -100
) -> SummedLoss:
    """The sum of F.cross_entropy over the output layer's logits in float32 (float64 stays), in the products' precision.

    x: [..., width], labels: [...] int64. places: [K] int64, where in the flattened labels all those are that count; any
    number of others may be among them, also twice. Without it rows whose label does not count cost as much as others.

    The gradient is computed with the loss, chunk by chunk, so that the three products of each are made once (as in
    Liger Kernel, Hsu et al. 2024); it can be taken once. An output layer that is not trained costs two.
    """
    flat, targets, dtype = _rows(x, labels, places)
    weight, bias, (scale, cap) = output
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        trained = weight.requires_grad or (bias is not None and bias.requires_grad)
        total: Tensor = ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            flat, weight, bias, targets, (ignored, dtype, scale, cap, trained)
        )
        return SummedLoss(total, None)
    wide = torch.promote_types(dtype, torch.float32)
    total, correct = x.new_zeros((), dtype=wide), []
    layer = _Layer(weight, bias, dtype)
    for rows, wanted in chunks(flat, targets, weight.shape[0]):
        logits = capped(layer.logits(rows).to(wide), output.tail)
        total = total + losses_of(logits, wanted, ignored).sum()
        correct.append(logits.argmax(-1) == wanted)
    return SummedLoss(total, _put_back(torch.cat(correct), labels, places))


def chunked_token_losses(
    x: Tensor, output: Output, labels: Tensor, places: Tensor | None = None, ignored: int = -100
) -> Tensor:
    """Each token's cross-entropy, of the labels' shape, 0 where its label is ignored; arguments as above.

    Where what becomes of them decides on the gradient's factors, as in preferences, no gradient can be computed with
    the loss: the backward pass computes the logits of each chunk again.
    """
    flat, targets, dtype = _rows(x, labels, places)
    weight, bias, (scale, cap) = output
    trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    losses: Tensor = ChunkedTokenLosses.apply(  # type: ignore[no-untyped-call]
        flat, weight, bias, targets, (ignored, dtype, scale, cap, trained)
    )
    return _put_back(losses, labels, places)


def _rows(x: Tensor, labels: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor, torch.dtype]:
    """Rows and labels that are looked at, and the type of the products."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    flat, targets = x.flatten(0, -2), labels.flatten()
    if places is None:
        return flat, targets, dtype
    return flat.index_select(0, places), targets.index_select(0, places), dtype


def _put_back(values: Tensor, labels: Tensor, places: Tensor | None) -> Tensor:
    """One value a label; 0 for labels that were not looked at."""
    if places is not None:
        values = values.new_zeros(labels.numel()).index_copy(0, places, values)
    return values.view(labels.shape)


def chunks(x: Tensor, labels: Tensor, num_logits: int, least: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Equal runs of tokens, but for the last one, each with at most CHUNK_LOGITS logits or `least` tokens."""
    most = max(1, least, CHUNK_LOGITS // num_logits)
    if most > ROW_MULTIPLE:
        most -= most % ROW_MULTIPLE
    return list(zip(x.split(most), labels.split(most), strict=True))


Settings = tuple[int, torch.dtype, float, float | None, bool]
"""Label that is ignored, type of the products, the tail's two numbers, and whether the output layer is trained."""


class _Layer:
    """An output layer's products in one type, and what their gradients come to."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._weight = weight.to(dtype)
        self._bias = None if bias is None else bias.to(dtype)
        # Float16 cannot hold sums over a chunk's tokens that no loss scale has made small yet.
        self.narrow = torch.float32 if dtype == torch.float16 else dtype

    def logits(self, rows: Tensor) -> Tensor:
        """[N, vocabulary], in the products' type."""
        rows, transposed = rows.to(self._dtype), self._weight.t()
        return rows @ transposed if self._bias is None else torch.addmm(self._bias, rows, transposed)

    def for_rows(self, gradient: Tensor) -> Tensor:
        """The rows' gradient, of the logits'."""
        with torch.autocast(gradient.device.type, enabled=False):  # which would take float32 back to float16
            return gradient @ self._weight.to(self.narrow)

    def for_weight(self, gradient: Tensor, rows: Tensor, before: Tensor | None, wide: torch.dtype) -> Tensor:
        """The weight's gradient, of the logits', in `wide`; added to what there is from before, in place."""
        turned, rows = gradient.t(), rows.to(self.narrow)
        with torch.autocast(gradient.device.type, enabled=False):
            if self.narrow == wide:
                return turned @ rows if before is None else before.addmm_(turned, rows)
            if gradient.is_cuda and not torch.compiler.is_compiling():  # which cannot follow an out_dtype
                # The product's own sums, not rounded to half precision, and no pass over memory to add them up.
                if before is None:
                    return torch.mm(turned, rows, out_dtype=wide)
                return torch.addmm(before, turned, rows, out_dtype=wide, out=before)
            found = turned @ rows
        return found.to(wide) if before is None else before.add_(found)


class _Sums:
    """Gradients of an output layer, summed up chunk by chunk; None where it is not trained."""

    def __init__(self, weight: Tensor, bias: Tensor | None, wide: torch.dtype, *, trained: bool) -> None:
        self._wide, self._trained = wide, trained
        self.least = weight.shape[1] // 2 if trained else 1
        """Fewest tokens of a chunk: adding it up is a pass over the whole weight, which its products must outweigh."""
        self.weight: Tensor | None = None
        self.bias = torch.zeros_like(bias, dtype=wide) if trained and bias is not None else None

    def add(self, layer: _Layer, gradient: Tensor, rows: Tensor) -> None:
        """Take in a chunk's."""
        if self._trained:
            self.weight = layer.for_weight(gradient, rows, self.weight, self._wide)
        if self.bias is not None:
            self.bias += gradient.sum(0, dtype=self.bias.dtype)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Gives the sum and keeps the gradients of x and the output layer, which the backward pass only multiplies."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, settings: Settings) -> Tensor:
        """Take x [N, width], weight [vocabulary, width], bias [vocabulary], labels [N]."""
        ignored, dtype, scale, cap, trained = settings
        wide = torch.promote_types(dtype, torch.float32)
        layer, sums = _Layer(weight, bias, dtype), _Sums(weight, bias, wide, trained=trained)
        piece = pieces_for(x.device)
        total, for_x = x.new_zeros((), dtype=wide), []
        for rows, wanted in chunks(x, labels, weight.shape[0], sums.least):
            losses, gradient = piece(layer.logits(rows), wanted, ignored, scale, cap, layer.narrow)
            total = total + losses.sum()
            for_x.append(layer.for_rows(gradient).to(x.dtype))
            sums.add(layer, gradient, rows)
        for_weight = None if sums.weight is None else sums.weight.to(weight.dtype)
        for_bias = None if sums.bias is None or bias is None else sums.bias.to(bias.dtype)
        ctx.save_for_backward(torch.cat(for_x), for_weight, for_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Times the gradient of the sum."""
        (factor,) = gradients
        found = [None if kept is None else kept * factor.to(kept.dtype) for kept in ctx.saved_tensors]
        return (*found, None, None)


class ChunkedTokenLosses(torch.autograd.Function):
    """Gives each token's loss; the backward pass computes each chunk's logits again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, settings: Settings) -> Tensor:
        """Take x [N, width], weight [vocabulary, width], bias [vocabulary], labels [N]; gives [N]."""
        ignored, dtype, scale, cap, _ = settings
        wide = torch.promote_types(dtype, torch.float32)
        layer = _Layer(weight, bias, dtype)
        found = []
        for rows, wanted in chunks(x, labels, weight.shape[0]):
            logits = capped(layer.logits(rows).to(wide), Tail(scale, cap))
            found.append(losses_of(logits, wanted, ignored))
        ctx.save_for_backward(x, weight, bias, labels)
        ctx.settings = settings
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Each row's gradient times its loss's."""
        (factors,) = gradients
        x, weight, bias, labels = ctx.saved_tensors
        ignored, dtype, scale, cap, trained = ctx.settings
        wide = torch.promote_types(dtype, torch.float32)
        layer, sums = _Layer(weight, bias, dtype), _Sums(weight, bias, wide, trained=trained)
        for_x, done = [], 0
        for rows, wanted in chunks(x, labels, weight.shape[0], sums.least):
            _, gradient = losses_and_gradient(layer.logits(rows), wanted, ignored, scale, cap, wide)
            factor = factors[done : done + len(rows), None]
            done += len(rows)
            gradient = (gradient * factor).to(layer.narrow)
            for_x.append(layer.for_rows(gradient).to(x.dtype))
            sums.add(layer, gradient, rows)
        for_weight = None if sums.weight is None else sums.weight.to(weight.dtype)
        for_bias = None if sums.bias is None else sums.bias.to(bias.dtype)
        return torch.cat(for_x), for_weight, for_bias, None, None
