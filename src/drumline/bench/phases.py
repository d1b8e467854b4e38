"""Forward, backward and optimizer times apart, measured from outside of any strategy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from drumline.engine.timing import DeviceClock, Mark
from drumline.parallel.strategy import MicroBatch, Outcome, Scale, Strategy, Sums


class Phases(NamedTuple):
    """Seconds of one update, over its micro-batches and learners."""

    forward_s: float
    """Passes up to the loss, the batch's way to the device included."""
    backward_s: float
    """Gradients, and as much of their reduction as they did not hide."""
    optimizer_s: float
    """Clipping and the optimizer's step."""


class TimedStrategy:
    """A strategy whose windows and steps leave marks on the device's time line, while `watching` is true.

    A pass has turned around where `Tensor.backward` is called, which all strategies do, from Python and outside of what
    torch.compile makes: the only place that can be seen without a line in any of them. Replicas that run in threads of
    their own are seen by the device of the first.
    """

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self._strategy = strategy
        self._device = device
        self._clock = DeviceClock(device)
        self._marks: list[tuple[str, Mark]] = []
        self.watching = False

    def __getattr__(self, name: str) -> Any:
        """Everything else is the strategy's own."""
        return getattr(self._strategy, name)

    def window(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """The strategy's window, with marks at its beginning and around each backward pass."""
        if not self.watching:
            return self._strategy.window(name, micro_batches, scale)
        self._mark("window")
        with self._backward_marked():
            return self._strategy.window(name, micro_batches, scale)

    def step(self, name: str, max_norm: float | None) -> Outcome:
        """The strategy's step between two marks."""
        if not self.watching:
            return self._strategy.step(name, max_norm)
        self._mark("step")
        outcome = self._strategy.step(name, max_norm)
        self._mark("end")
        return outcome

    def take(self) -> list[Phases]:
        """Phases of each watched update; waits for the device."""
        self._clock.drain()
        marks, self._marks = self._marks, []
        starts = [i for i, (name, _) in enumerate(marks) if name == "window"] + [len(marks)]
        return [
            phases_of([(name, self._clock.seconds(marks[0][1], mark)) for name, mark in marks[begin:end]])
            for begin, end in itertools.pairwise(starts)
        ]

    def _mark(self, name: str) -> None:
        self._marks.append((name, self._clock.mark()))

    @contextmanager
    def _backward_marked(self) -> Iterator[None]:
        original: Any = torch.Tensor.backward

        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if tensor.device != self._device:
                original(tensor, *args, **kwargs)
                return
            self._mark("backward")
            original(tensor, *args, **kwargs)
            self._mark("forward")

        torch.Tensor.backward = backward  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            torch.Tensor.backward = original  # type: ignore[method-assign]


def phases_of(marks: Sequence[tuple[str, float]]) -> Phases:
    """Phases out of (what begins, seconds) of one window: window, (backward, forward) a micro-batch, step, end.

    What lies between the last backward pass and the step is the loop's own.
    """
    seconds = {"window": 0.0, "forward": 0.0, "backward": 0.0, "step": 0.0}
    for (name, begin), (following, end) in itertools.pairwise(marks):
        if (name, following) != ("forward", "step"):
            seconds[name] += end - begin
    return Phases(seconds["window"] + seconds["forward"], seconds["backward"], seconds["step"])
