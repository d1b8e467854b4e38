"""Work on a CUDA device as graphs: recorded once, replayed with one call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

WARM_UPS = 2
"""Runs before a recording, in which libraries take their workspaces and choose their kernels."""

_logger = logging.getLogger(__name__)


class Graphs:
    """Records actions, whose intermediate results share one pool of memory: they must not run at the same time."""

    def __init__(self, device: torch.device) -> None:
        """On another device than a CUDA one an action stays what it is."""
        self._device = device
        self._pool: Any = None
        self._stream: Any = None
        """One for all recordings: the allocator keeps what each stream has used for that stream."""
        self.is_on = device.type == "cuda"

    def captured(self, action: Callable[[], object], undo: Callable[[], object]) -> Callable[[], object]:
        """Something that does what the action does, which is run some times for it; undo puts things back after each.

        Where the action cannot be recorded, it is given back itself, and nothing is recorded from then on.
        """
        if not self.is_on:
            return action
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            graph: Any = self._record(action, undo)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # Such as a mixture of experts that asks the device how many tokens each expert has.
            _logger.warning("the model's steps cannot be recorded as a CUDA graph, and run one by one: %s", error)
            self.is_on = False
            torch.cuda.synchronize(self._device)
            undo()
            return action
        replay: Callable[[], object] = graph.replay
        return replay

    def forget(self) -> None:
        """Begin with new memory; graphs that nobody holds give back theirs."""
        self._pool = None

    def _leave_capture(self) -> None:
        """Let the allocator serve the stream as usual again, and keep nothing of the pool."""
        # Where capture_end fails, it does so before it tells the allocator, which would go on taking memory from the
        # pool and would keep back what other streams give it.
        end: Any = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end is not None and self._pool is not None:
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            with suppress(RuntimeError):  # it was told: nothing is under way
                end(index, self._pool)
        self.forget()

    def _record(self, action: Callable[[], object], undo: Callable[[], object]) -> Any:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        current, stream, graph = torch.cuda.current_stream(self._device), self._stream, torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                action()
                undo()
            torch.cuda.synchronize(self._device)
            # Not torch.cuda.graph, which collects garbage and empties the allocator's cache for each one anew.
            # thread_local: other threads of the process may be at the device, as the one that reads its health.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                action()
            except BaseException:
                # It ends with an error of its own, of which the one at hand is the cause.
                with suppress(RuntimeError):
                    graph.capture_end()
                self._leave_capture()
                raise
            graph.capture_end()
        current.wait_stream(stream)
        return graph
