"""Batches on their way to their GPUs while the window before them is computed, on streams of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from drumline.data.sharing import tensors
from drumline.data.windows import Feed, Window
from drumline.parallel.objective import to_device
from drumline.parallel.strategy import MicroBatch

MOST_BYTES = 1 << 30
"""Windows with more data a GPU than that are copied as they are run: two of them at once would be GPU memory that the
model could use, and their passes are long enough to hide a copy."""


class DeviceFeed:
    """A feed whose batches are copied to their shards' GPUs as soon as they are read.

    The loop reads a window while the one before it is computed. On the stream that computes, a copy would wait for
    that; here it does not, as far as the batches lie in page-locked memory.
    """

    def __init__(self, feed: Feed, devices: Sequence[torch.device]) -> None:
        """devices: by shard of this process."""
        self._feed = feed
        self._devices = devices
        self._streams = [torch.cuda.Stream(device) for device in devices]

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited for the loader, in total."""
        return self._feed.waited_s

    def epoch(self, epoch: int, start: int) -> Iterator[Window]:
        """Windows of one epoch from window `start` on; `ready()` before each is run."""
        for window in self._feed.epoch(epoch, start):
            micro_batches, arrival = self._send(window.micro_batches)
            yield replace(window, micro_batches=micro_batches, arrival=arrival)

    def evaluation(self) -> Iterator[MicroBatch]:
        """Batches of an evaluation, one of them always on its way."""
        sent = (self._send([micro_batch]) for micro_batch in self._feed.evaluation())
        coming = next(sent, None)
        while coming is not None:
            (micro_batch,), arrival = coming
            coming = next(sent, None)
            arrival()
            yield micro_batch

    def recut(self, micro_batch: int) -> None:
        """Cut windows anew."""
        self._feed.recut(micro_batch)

    def close(self) -> None:
        """End loader processes."""
        self._feed.close()

    def _send(self, micro_batches: Sequence[MicroBatch]) -> tuple[tuple[MicroBatch, ...], Callable[[], None]]:
        """Start copying; returns the batches on their devices, and what makes the current streams wait for them."""
        total = sum(tensor.nbytes for each in micro_batches for tensor in tensors(each.batch))
        if total > MOST_BYTES * len(self._devices) or not all(is_plain(each.batch) for each in micro_batches):
            return tuple(micro_batches), nothing
        sent = []
        for each in micro_batches:
            with torch.cuda.stream(self._streams[each.shard]):
                sent.append(each._replace(batch=to_device(each.batch, self._devices[each.shard])))
        copied = {shard: self._streams[shard].record_event() for shard in {each.shard for each in sent}}

        def arrive() -> None:
            for shard, event in copied.items():
                torch.cuda.current_stream(self._devices[shard]).wait_event(event)
            for each in sent:
                current = torch.cuda.current_stream(self._devices[each.shard])
                for tensor in tensors(each.batch):
                    if tensor.is_cuda:
                        # Its memory is the copying stream's, which would use it again while this one still reads it.
                        tensor.record_stream(current)

        return tuple(sent), arrive


def nothing() -> None:
    """The batches are where they are."""


def is_plain(batch: Any) -> bool:
    """Whether all tensors of a batch can be seen: an object that moves itself may hold others."""
    if isinstance(batch, Tensor):
        return batch.layout == torch.strided
    if isinstance(batch, Mapping):
        return all(is_plain(value) for value in batch.values())
    if isinstance(batch, list | tuple):
        return all(is_plain(value) for value in batch)
    return not hasattr(batch, "to")


def on_devices(feed: Feed, devices: Sequence[torch.device]) -> Feed:
    """The feed with its batches sent ahead where there are GPUs to send them to; on the CPU the feed itself.

    devices: of this process's shards.
    """
    return DeviceFeed(feed, devices) if devices[0].type == "cuda" else feed
