"""Gradients as views of flat buffers, summed over the replicas of one process a bucket at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.cuda import nccl

from drumline.errors import BackendError, DrumlineError

ALIGNMENT_BYTES = 64
"""Each gradient begins at a multiple of it: kernels over many tensors read 16 bytes at a time, or a byte at a time."""


class FlatGradients:
    """One replica's gradients of one learner.

    Within a buffer they lie in the reverse order of the parameters, which is about that in which a backward pass makes
    them, so that buckets are complete one after the other.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], bucket_bytes: int) -> None:
        self._parameters = dict(parameters)
        self._buffers: list[Tensor] = []
        self.buckets: list[Tensor] = []
        """Parts of the buffers, alike on all replicas."""
        self._views: dict[str, Tensor] = {}
        self._bucket_of: dict[str, int] = {}
        for dtype in dict.fromkeys(p.dtype for p in parameters.values()):
            self._lay_out({n: p for n, p in reversed(list(parameters.items())) if p.dtype == dtype}, bucket_bytes)
        self._passes_left = 0
        self._used: set[str] = set()
        self._arrived: set[str] = set()
        self._waiting = [0] * len(self.buckets)
        self._complete: Callable[[int], None] | None = None
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._accumulated, name)) for name, p in parameters.items()
        ]

    def _lay_out(self, parameters: Mapping[str, nn.Parameter], bucket_bytes: int) -> None:
        """One buffer for these parameters, which are of one type."""
        first = next(iter(parameters.values()))
        step = ALIGNMENT_BYTES // first.element_size() or 1
        starts, offset = [0], 0
        places = {}
        for name, p in parameters.items():
            places[name] = offset
            self._bucket_of[name] = len(self.buckets) + len(starts) - 1
            offset += -(-p.numel() // step) * step
            if (offset - starts[-1]) * first.element_size() >= bucket_bytes:
                starts.append(offset)
        buffer = torch.zeros(offset, dtype=first.dtype, device=first.device)
        self._buffers.append(buffer)
        ends = [*starts[1:], offset]
        self.buckets += [buffer[start:end] for start, end in zip(starts, ends, strict=True) if end > start]
        self._views |= {name: view_like(p, buffer, places[name]) for name, p in parameters.items()}

    @torch.no_grad()
    def begin(self, num_passes: int, complete: Callable[[int], None] | None) -> None:
        """Zero them all and put them in their places, before the passes of a window.

        complete: called with the number of each bucket that the last pass of the window has filled, in the thread that
        runs the backward pass; None: nobody asks.
        """
        torch._foreach_zero_(self._buffers)
        for name, p in self._parameters.items():
            p.grad = self._views[name]
        self._used.clear()
        self._complete = complete
        self._passes_left = num_passes

    def begin_pass(self) -> None:
        """Called before each pass."""
        self._passes_left -= 1
        if self._is_last:
            self._arrived.clear()
            self._waiting = [0] * len(self.buckets)
            for bucket in self._bucket_of.values():
                self._waiting[bucket] += 1

    @property
    def _is_last(self) -> bool:
        return self._complete is not None and self._passes_left == 0

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        """Hook of a parameter whose gradient a pass has just added to."""
        self._used.add(name)
        if not self._is_last:
            return
        if name in self._arrived:
            raise DrumlineError(
                "re-entrant activation checkpointing adds to a gradient that may be on its way to the other replicas",
                "call torch.utils.checkpoint with use_reentrant=False",
            )
        self._arrived.add(name)
        bucket = self._bucket_of[name]
        self._waiting[bucket] -= 1
        if self._waiting[bucket] == 0 and self._complete is not None:
            self._complete(bucket)

    def unused(self) -> list[str]:
        """Parameters that no pass of this window gave a gradient."""
        return [name for name in self._parameters if name not in self._used]

    def drop(self, name: str) -> None:
        """Leave this parameter without gradient for this update."""
        self._parameters[name].grad = None

    def close(self) -> None:
        """Let the parameters go."""
        for hook in self._hooks:
            hook.remove()
        for p in self._parameters.values():
            p.grad = None
        self._parameters, self._complete = {}, None


def view_like(parameter: Tensor, buffer: Tensor, start: int) -> Tensor:
    """The part of a flat buffer from `start` on as a tensor of the parameter's shape and, if dense, its strides."""
    part = buffer[start : start + parameter.numel()]
    strides = torch.empty_like(parameter, device="meta").stride()
    return part.as_strided(parameter.shape, strides)


class Reduction:
    """Sums the gradients of one learner over all replicas; each of them has the sum then.

    On GPUs by NCCL, on a stream of its own a GPU: a bucket is sent as soon as the last replica has filled it, while the
    rest of the backward pass runs. What no pass has filled is sent at the end.
    """

    def __init__(self, flats: Sequence[FlatGradients], devices: Sequence[torch.device]) -> None:
        self._flats = flats
        self._num_buckets = len(flats[0].buckets)
        self._lock = threading.Lock()
        self._on_gpus = devices[0].type == "cuda"
        self._streams: Sequence[torch.cuda.Stream] = ()
        if self._on_gpus:
            # Before all else on their GPUs: a bucket is small beside what is still to be computed.
            self._own = [torch.cuda.Stream(device, priority=-1) for device in devices]
            self._filled = [[torch.cuda.Event() for _ in devices] for _ in range(self._num_buckets)]

    def begin(self, streams: Sequence[torch.cuda.Stream]) -> None:
        """Before a window's passes; streams: those that the replicas compute on, none on the CPU."""
        self._streams = streams
        self._missing = [len(self._flats)] * self._num_buckets

    def filled(self, replica: int, bucket: int) -> None:
        """The replica adds no more to the bucket. Any thread may say so."""
        self._filled[bucket][replica].record(self._streams[replica])
        with self._lock:
            self._missing[bucket] -= 1
            if not self._missing[bucket]:
                self._send(bucket)

    def finish(self) -> None:
        """After all passes: send what is left, and make the replicas' streams wait for all of it."""
        for bucket in range(self._num_buckets):
            if self._on_gpus and self._missing[bucket]:
                for event, stream in zip(self._filled[bucket], self._streams, strict=True):
                    event.record(stream)
                self._send(bucket)
            elif not self._on_gpus:
                add_up([flat.buckets[bucket] for flat in self._flats])
        if self._on_gpus:
            for stream, own in zip(self._streams, self._own, strict=True):
                stream.wait_stream(own)

    def _send(self, bucket: int) -> None:
        for own, event in zip(self._own, self._filled[bucket], strict=True):
            own.wait_event(event)
        nccl.all_reduce([flat.buckets[bucket] for flat in self._flats], streams=self._own)


@torch.no_grad()
def add_up(tensors: Sequence[Tensor]) -> None:
    """Put the sum of tensors of one device into each of them."""
    first, *others = tensors
    for other in others:
        first.add_(other)
    for other in others:
        other.copy_(first)


def check_nccl(devices: Sequence[torch.device]) -> None:
    """Sum ones over these GPUs and look at the value: a broken transport can also copy zeros (nccl-tests #117).

    Raises BackendError. It also makes the communicator, which torch keeps for as long as the process lives.
    """
    ones = [torch.ones(1, device=device) for device in devices]
    for one in ones:
        for device in devices:
            # Within a process NCCL reads the other GPU's tensors directly. A copy has torch let GPUs reach each other's
            # expandable segments, which CUDA itself does not.
            one.to(device)
    names = ", ".join(map(str, devices))
    try:
        nccl.all_reduce(ones)
        found = [float(each) for each in ones]
    except RuntimeError as error:
        raise BackendError(
            f"NCCL failed its check between {names}: {error}", "drumline doctor shows more; or use parallel.kind=ddp"
        ) from error
    if found != [float(len(devices))] * len(devices):
        raise BackendError(f"the sum of ones over {names} was {found}", "drumline doctor shows more")
