"""A running average of the weights, kept on the device beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config.train import AveragingConfig
from drumline.errors import ConfigError
from drumline.parallel.update import local_part


class Average:
    """Exponential (ema) or plain (swa) average over the weights after completed updates.

    With `begin` = start x total_steps, rounded down, the weights after completed update k are taken in where k > begin
    and k - begin is a multiple of `every`. The first ones taken in are the average; then ema moves it by 1 - decay
    towards the weights, and swa is the mean of all that were taken in. Before the first, there is no average and the
    weights themselves stand for it.

    Parameters that require a gradient are averaged, and floating buffers of the state_dict (running statistics) as
    they are; other buffers are the newest. Averages of half-precision values are kept in float32.
    """

    def __init__(self, model: nn.Module, config: AveragingConfig, total_steps: int | None) -> None:
        """Take the model's weights as what is averaged, on their device.

        Raises ConfigError where `start` is a share of a run whose length is not known, and where the run ends before
        any weights are taken in.
        """
        if config.start and total_steps is None:
            raise ConfigError(
                f"train.averaging.start is {config.start}, a share of a run whose number of updates is not known",
                "set train.max_steps, or train.averaging.start to 0",
            )
        self._config = config
        self._begin = int(config.start * (total_steps or 0))
        if total_steps is not None and config.every > total_steps - self._begin:
            raise ConfigError(
                f"train.averaging takes weights in every {config.every} updates after the first {self._begin}, and the "
                f"run has {total_steps}: no weights would be averaged",
                f"set train.averaging.every to {total_steps - self._begin} or less",
            )
        self._model = model
        persistent = set(model.state_dict(keep_vars=True))
        # Of a sharded one this rank's part, which averages like the whole.
        self._parameters = {name: local_part(p) for name, p in model.named_parameters() if p.requires_grad}
        self._buffers = [name for name, _ in model.named_buffers() if name in persistent]
        with torch.no_grad():
            self._averages = {name: wide_copy(value) for name, value in self._values().items()}
        self._pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for name, p in self._parameters.items():
            averages, values = self._pairs.setdefault(p.dtype, ([], []))
            averages.append(self._averages[name])
            values.append(p)
        self._device = next(iter(self._averages.values())).device
        self._completed: int | Tensor = 0
        self._taken: int | Tensor = 0
        self._is_swapped = False

    def _values(self) -> dict[str, Tensor]:
        """What is averaged, by name; buffers anew each time: a forward pass may put a tensor in one's place."""
        return {**self._parameters, **{name: self._model.get_buffer(name) for name in self._buffers}}

    @torch.no_grad()
    def update(self, applied: Tensor | None) -> None:
        """Take in the weights after an update, if it is one of those that count.

        applied: 1.0 or 0.0, a scalar on the device: the update was applied or skipped. Nobody waits for it, at the
        price of a pass over the weights whether they are taken in or not. None: surely applied, known to the host.
        """
        if applied is None and isinstance(self._completed, int) and isinstance(self._taken, int):
            self._completed += 1
            if self._completed > self._begin and (self._completed - self._begin) % self._config.every == 0:
                self._taken += 1
                self._move(self._share(self._taken))
            return
        completed, taken = self._counters()
        counts = torch.ones((), dtype=torch.bool, device=self._device) if applied is None else applied > 0
        completed += counts
        past = completed - self._begin
        due = counts & (past > 0) & (past % self._config.every == 0)
        taken += due
        if self._config.kind == "swa":
            share = 1 / taken.clamp(min=1).double()
        else:
            share = 1 - self._config.decay * (taken > 1).double()
        self._move(torch.where(due, share, 0.0), due)

    def _share(self, taken: int) -> float:
        """What the newest weights count in the average."""
        if taken == 1:
            return 1.0
        return 1 / taken if self._config.kind == "swa" else 1 - self._config.decay

    def _counters(self) -> tuple[Tensor, Tensor]:
        """Both counters, on the device from here on."""
        self._completed = torch.as_tensor(self._completed, device=self._device)
        self._taken = torch.as_tensor(self._taken, device=self._device)
        return self._completed, self._taken

    def _move(self, share: float | Tensor, due: Tensor | None = None) -> None:
        """Move the average by this share towards the weights; due: whether to, where only the device knows."""
        for averages, parameters in self._pairs.values():
            move(averages, parameters, share)
        for name in self._buffers:
            average, buffer = self._averages[name], self._model.get_buffer(name)
            if average.is_floating_point():
                move([average], [buffer], share)
            else:
                average.copy_(buffer if due is None else torch.where(due, buffer, average))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; after it its own again, to the bit.

        A copy of the weights is held meanwhile. Before the first weights are taken in, and inside another `swapped`,
        nothing changes.
        """
        if self._is_swapped or not int(self._taken):
            yield
            return
        values = self._values()
        kept = [value.clone() for value in values.values()]
        self._is_swapped = True
        try:
            with torch.no_grad():
                for name, value in values.items():
                    value.copy_(self._averages[name])
            yield
        finally:
            self._is_swapped = False
            with torch.no_grad():
                for value, own in zip(values.values(), kept, strict=True):
                    value.copy_(own)

    def state(self) -> dict[str, Any]:
        """Both counters and the averages by name; these are left out while there is none."""
        taken = int(self._taken)
        return {
            "completed": int(self._completed),
            "taken": taken,
            "averages": dict(self._averages) if taken else {},
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave. Raises ValueError where it is of other weights."""
        self._completed, self._taken = state["completed"], state["taken"]
        if not self._taken:
            return
        saved: Mapping[str, Tensor] = state["averages"]
        other = saved.keys() ^ self._averages.keys()
        if other:
            raise ValueError(f"the average is of other weights: {', '.join(sorted(other)[:3])}")
        for name, average in self._averages.items():
            average.copy_(saved[name])


def move(averages: list[Tensor], values: list[Tensor], share: float | Tensor) -> None:
    """Move averages of one type by this share towards values of one type."""
    dtype = averages[0].dtype
    if values[0].dtype != dtype:
        values = [value.to(dtype) for value in values]
    if isinstance(share, Tensor):
        # A weight for each tensor is the one form that takes it from the device.
        torch._foreach_lerp_(averages, values, [share.to(dtype)] * len(averages))
    else:
        torch._foreach_lerp_(averages, values, share)


def wide_copy(value: Tensor) -> Tensor:
    """A copy, in float32 where it is half precision: steps of an average are lost in 8 or 11 bits."""
    narrow = value.is_floating_point() and value.dtype.itemsize < 4
    return value.to(torch.float32, copy=True) if narrow else value.clone()
