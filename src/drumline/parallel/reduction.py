"""How one learner's gradients come to be sums over all ranks: while a backward pass runs, or all at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drumline.parallel.compression import SentBucket, Wire
from drumline.parallel.flat import ALIGNMENT_BYTES, view_like


class Reduction:
    """What torch's communication hook knows of a backward pass, see `ddp.sum_bucket`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.whole = False
        """Whether the last bucket was sent; they are sent in order."""
        self.squares: list[Tensor] | None = None
        """Of this rank's own gradient, a bucket each; None: nobody wants to know them."""

    def send(self, bucket: SentBucket) -> torch.futures.Future[Tensor]:
        """Start the all-reduce of one bucket, without dividing."""
        self.whole = self.whole or bucket.is_last()
        if self.squares is not None:
            self.squares.append(torch.linalg.vector_norm(bucket.buffer()).double().square())
        return self.wire.sum(bucket)


@dataclass(frozen=True)
class Bucket:
    """Gradients of some parameters as parts of one buffer."""

    named: Mapping[str, nn.Parameter]
    flat: Tensor
    views: Sequence[Tensor]
    """Of each parameter's shape."""
    ends: bool
    """Whether it is the last one."""

    def buffer(self) -> Tensor:
        """All of them, in one dimension."""
        return self.flat

    def parameters(self) -> list[Tensor]:
        """What they are the gradients of."""
        return list(self.named.values())

    def gradients(self) -> list[Tensor]:
        """One by one."""
        return list(self.views)

    def is_last(self) -> bool:
        """Whether none is sent after it."""
        return self.ends


class LateReduction(Reduction):
    """Sums all gradients once a backward pass has ended, for a compiled graph in one piece, which gives none before.

    They go into their buckets by one kernel a bucket; torch's wrapper has one for each of them.
    """

    def __init__(self, wire: Wire, parameters: Mapping[str, nn.Parameter], bucket_bytes: int) -> None:
        super().__init__(wire)
        self._buckets = lay_out(parameters, bucket_bytes)

    @torch.no_grad()
    def run(self) -> set[str]:
        """Put the sums in the gradients' places; returns the parameters without gradient here, which add nothing."""
        missing, sent = set(), []
        for bucket in self._buckets:
            given, places = [], []
            for (name, parameter), view in zip(bucket.named.items(), bucket.views, strict=True):
                if parameter.grad is None:
                    missing.add(name)
                    view.zero_()
                elif parameter.grad.data_ptr() != view.data_ptr():
                    given.append(parameter.grad)
                    places.append(view)
                parameter.grad = view
            if given:
                torch._foreach_copy_(places, given)
            sent.append(self.send(bucket))
        for future in sent:
            future.wait()  # on a GPU only its stream waits
        return missing


def lay_out(parameters: Mapping[str, nn.Parameter], bucket_bytes: int) -> list[Bucket]:
    """Buckets of some `bucket_bytes`, each of parameters of one type, in reverse order; a larger one is alone."""
    parts: list[dict[str, nn.Parameter]] = []
    for dtype in dict.fromkeys(p.dtype for p in parameters.values()):
        room = 0
        for name, parameter in reversed(list(parameters.items())):
            if parameter.dtype != dtype:
                continue
            if room < parameter.nbytes:
                parts.append({})
                room = bucket_bytes
            parts[-1][name] = parameter
            room -= parameter.nbytes
    return [_bucket(part, number == len(parts)) for number, part in enumerate(parts, 1)]


def _bucket(named: Mapping[str, nn.Parameter], ends: bool) -> Bucket:
    # Without room between them: what is there would be reduced, too. So those after which no other would be aligned
    # come last.
    named = dict(sorted(named.items(), key=lambda item: item[1].nbytes % ALIGNMENT_BYTES != 0))
    first = next(iter(named.values()))
    flat = torch.zeros(sum(p.numel() for p in named.values()), dtype=first.dtype, device=first.device)
    views, start = [], 0
    for parameter in named.values():
        views.append(view_like(parameter, flat, start))
        start += parameter.numel()
    return Bucket(named, flat, views, ends)
