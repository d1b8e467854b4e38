"""How the ranks sum one bucket of gradients: as it is, in half precision, or as factors of low rank (PowerSGD)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.config.parallel import DdpParallel
from drumline.parallel.low_rank import LowRank

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST = 1e-20
"""A bucket of zeros gets the scale of this value, so that nothing is divided by zero."""


class SentBucket(Protocol):
    """What is asked of a bucket: torch's own (torch.distributed.GradBucket), or ours."""

    def buffer(self) -> Tensor:
        """All gradients, in one dimension."""
        ...

    def gradients(self) -> list[Tensor]:
        """Parts of the buffer, each of its parameter's shape."""
        ...

    def parameters(self) -> list[Tensor]:
        """What they are the gradients of."""
        ...

    def is_last(self) -> bool:
        """Whether it is the last of its backward pass."""
        ...


class Wire:
    """Sums buckets as they are. Compression is a subclass; what it does comes to a sum on all ranks, too."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def sum(self, bucket: SentBucket) -> torch.futures.Future[Tensor]:
        """Start the all-reduce of one bucket, in place and without dividing."""
        work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)
        reduced: torch.futures.Future[Tensor] = work.get_future().then(first_value)
        return reduced

    def settle(self, applied: Tensor, growth: Tensor | float) -> None:
        """Take in whether the window's update was applied (1.0 or 0.0), and by what the loss scale has grown since."""

    def take_back(self) -> None:
        """Forget the newest window."""

    def regroup(self, group: dist.ProcessGroup | None) -> None:
        """Let go of the group, or take another one; what compression carried from window to window begins anew."""
        self._group = group  # type: ignore[assignment]

    def state(self, unit: Tensor | float) -> dict[str, Any] | None:
        """What a run must keep, complete on every rank; None: nothing. All ranks call it; unit: the loss scale."""
        return None

    def load(self, state: Mapping[str, Any], unit: Tensor | float) -> None:
        """Take back what `state` gave. All ranks call it."""


class Aside(Wire, ABC):
    """Sums buckets in several operations, on a GPU in a stream of their own beside the backward pass."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group)
        self._device = device
        # Urgent, since its kernels are small and the other ranks wait for them.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def sum(self, bucket: SentBucket) -> torch.futures.Future[Tensor]:
        """Have the bucket summed in place."""
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[self._device] if self._stream else None)
        with self._beside():
            self._sum(bucket)
            future.set_result(bucket.buffer())  # on a GPU: will be there once the stream has come to this point
        return future

    @abstractmethod
    def _sum(self, bucket: SentBucket) -> None:
        """Sum the bucket in place, in the current stream."""

    def _reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        dist.all_reduce(tensor, op, group=self._group)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield


class HalfWire(Aside):
    """Rounds buckets to half precision for the way: one pass over them before it and one after.

    float16 has a narrow range. A bucket is scaled by the largest power of two with which not even the sum over all
    ranks can overflow, which takes a pass and a message of one number more. What is not finite stays so on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(group, device)
        self._dtype = dtype
        self._room = torch.finfo(torch.float16).max / group.size()

    def _sum(self, bucket: SentBucket) -> None:
        gradient = bucket.buffer()
        if self._dtype != torch.float16:
            rounded = gradient.to(self._dtype)
            self._reduce(rounded)
            gradient.copy_(rounded)
            return
        # One dimension, not none: torch would else compute in the type of the half-precision tensor.
        largest = torch.linalg.vector_norm(gradient, torch.inf).float().reshape(1)
        self._reduce(largest, dist.ReduceOp.MAX)
        scale = (self._room / largest.clamp(min=SMALLEST)).log2().floor().exp2()
        rounded = torch.empty_like(gradient, dtype=self._dtype)
        torch.mul(gradient, scale, out=rounded)
        self._reduce(rounded)
        torch.div(rounded, scale, out=gradient)


class PowerSgdWire(Aside):
    """Sends factors of low rank instead of matrices (PowerSGD, Vogels et al. 2019), after `start` plain windows.

    torch's own hook is not used: it makes the host wait for the GPU in each bucket, its error feedback never recovers
    from a gradient that is not finite, and a matrix whose gradient was zero once gets none from then on.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        trainable: Mapping[str, nn.Parameter],
        rank: int,
        start: int,
    ) -> None:
        super().__init__(group, device)
        self._start = start
        self._windows = 0
        self._names = {id(p): name for name, p in trainable.items()}
        self._rank = rank
        self._low_rank = LowRank(list(trainable), rank, partial(dist.all_reduce, group=group))

    def sum(self, bucket: SentBucket) -> torch.futures.Future[Tensor]:
        """Have the bucket summed, plainly before the start."""
        compressed = self._windows >= self._start
        self._windows += bucket.is_last()
        return super().sum(bucket) if compressed else Wire.sum(self, bucket)

    def _sum(self, bucket: SentBucket) -> None:
        names = [self._names[id(p)] for p in bucket.parameters()]
        self._low_rank.sum(dict(zip(names, bucket.gradients(), strict=True)))

    def regroup(self, group: dist.ProcessGroup | None) -> None:
        """A window that was cut off may have left factors that differ between the ranks, so all of it begins anew."""
        super().regroup(group)
        self._windows = 0
        self._low_rank = LowRank(list(self._names.values()), self._rank, partial(dist.all_reduce, group=group))

    def settle(self, applied: Tensor, growth: Tensor | float) -> None:
        """Keep the errors of before where the update was skipped; scale them as gradients are scaled from now on."""
        self._low_rank.settle(applied, growth)

    def take_back(self) -> None:
        """Back to the errors of before the newest window."""
        self._windows -= 1
        self._low_rank.take_back()

    def state(self, unit: Tensor | float) -> dict[str, Any]:
        """Windows, factors and errors, those summed over all ranks: only their sum reaches the weights.

        So a run goes on as it would have, on any number of ranks.
        """
        errors = self._low_rank.errors()
        for error in errors.values():
            self._reduce(error.div_(unit))
        return {"windows": self._windows, "errors": errors, "factors": self._low_rank.factors()}

    def load(self, state: Mapping[str, Any], unit: Tensor | float) -> None:
        """Take back what `state` gave: each rank takes an equal part of the errors."""
        self._windows = state["windows"]
        share = unit / self._group.size()
        self._low_rank.load({n: e.to(self._device) * share for n, e in state["errors"].items()}, state["factors"])


def make_wire(
    settings: DdpParallel, group: dist.ProcessGroup, device: torch.device, trainable: Mapping[str, nn.Parameter]
) -> Wire:
    """What the settings ask for, for one learner's gradients."""
    if settings.compression == "power_sgd":
        return PowerSgdWire(group, device, trainable, settings.power_sgd_rank, settings.power_sgd_start)
    if settings.compression in HALF:
        return HalfWire(group, device, HALF[settings.compression])
    return Wire(group)


def first_value(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    """The reduced bucket out of a collective's future."""
    return future.value()[0]
