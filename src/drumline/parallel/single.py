"""One process, one device: the strategy that every other one must agree with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.parallel.adopt import adopted
from drumline.parallel.averaging import Average
from drumline.parallel.batch_norm import has_batch_norm, single_sample
from drumline.parallel.buffers import Buffers
from drumline.parallel.compile import Sizes
from drumline.parallel.compute import Compute
from drumline.parallel.each_gradient import lacks_gradients
from drumline.parallel.keys import bare_keys, load_weights, own_keys
from drumline.parallel.materialise import materialise, seeds_of
from drumline.parallel.noise import Noise, squared_norm
from drumline.parallel.objective import Objective, add_sums, run_pass, to_device
from drumline.parallel.precision import Precision
from drumline.parallel.saved_names import only_kept
from drumline.parallel.strategy import (
    Batch,
    Learner,
    Loss,
    MakeAverage,
    MicroBatch,
    Notes,
    Outcome,
    Rates,
    Scale,
    Sums,
    T,
)
from drumline.parallel.trial import Trials
from drumline.parallel.undoing import OnDevice
from drumline.parallel.unused import Unused
from drumline.parallel.update import Update


@dataclass
class Part:
    """One learner as a strategy holds it."""

    name: str
    objective: Objective
    precision: Precision
    update: Update
    trainable: dict[str, nn.Parameter]
    """What its passes give gradients."""
    others: list[nn.Parameter]
    """All others that want a gradient; none where there is only one learner."""
    unused: Unused
    noise: Noise | None
    skippable: bool
    windows: int = 0
    whole: Tensor | None = None
    """On the device, whether the newest window's reduction came to its end; None: the host knows that it did."""
    voids: Tensor | None = None
    """On the device: how many steps were none, because their reduction was cut off."""


class Single(Trials, OnDevice):
    """Runs windows on one device without any communication."""

    _share_of = "rank"
    """What each of those that share a window is called."""

    def __init__(
        self,
        device: torch.device,
        compute: Compute,
        rank: int = 0,
        *,
        gradient_noise: bool = False,
    ) -> None:
        self.device = device
        self._compute = compute
        self._rank = rank
        self._gradient_noise = gradient_noise
        self._parts: dict[str, Part] = {}
        self._average: Average | None = None
        self._applied: Tensor
        self._sizes = Sizes()
        self._steps = 0

    def setup(self, model: nn.Module, learners: Mapping[str, Learner], average: MakeAverage | None = None) -> None:
        """Take the model to the device and make the optimizers on it there."""
        if not any(p.requires_grad for p in model.parameters()):
            raise ConfigError("the model has no parameter that requires a gradient", "unfreeze what is to be trained")
        self._model = self._place(model)
        self._has_batch_norm = has_batch_norm(self._model)
        self._buffers = Buffers(self._model)
        optimizers = {name: self._make_optimizer(learner) for name, learner in learners.items()}
        wants = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        for name, trainable in owned_by(optimizers, wants).items():
            task, _, rates = learners[name]
            objective = Objective(self._model, task)
            self._compute.compile_objective(objective)
            precision = Precision(self._compute.precision, self.device)
            self._parts[name] = Part(
                name,
                objective,
                precision,
                self._make_update(optimizers[name], rates, precision),
                trainable,
                others=[p for other, p in wants.items() if other not in trainable],
                unused=Unused(self._rank, self._share_of),
                noise=Noise() if self._gradient_noise else None,
                skippable=rates.skippable,
            )
        names = list(self._parts)
        self._first, self._last = names[0], names[-1]
        self._wrap_parts()
        self._make_average = average
        self._average = None if average is None else average(self._model)

    def _place(self, model: nn.Module) -> nn.Module:
        """The model where it trains, computed as the settings say, before the optimizers are made."""
        materialise(model, self.device, seeds_of(model, torch.initial_seed()), {})
        model = model.to(self.device)
        self._compute.apply(model)
        return model

    def _make_optimizer(self, learner: Learner) -> torch.optim.Optimizer:
        """The learner's optimizer, on the model where it trains."""
        return learner.make_optimizer(self._model)

    def _make_update(self, optimizer: torch.optim.Optimizer, rates: Rates, precision: Precision) -> Update:
        """What turns gradients into its steps."""
        return Update(optimizer, rates, precision.loss_scale)

    def _wrap_parts(self) -> None:
        """Put wrappers around the objectives, before the average takes the weights."""

    @contextmanager
    def _alone(self, part: Part) -> Iterator[None]:
        """Inside, only this learner's parameters want a gradient; the others let gradients pass through."""
        for p in part.others:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in part.others:
                p.requires_grad_(True)

    @contextmanager
    def _in_pass(self, micro_batch: MicroBatch, *state: str) -> Iterator[None]:
        """The context of a training pass: BatchNorm may get one value a channel, and code be compiled."""
        lone = micro_batch.samples == 1 and self._has_batch_norm
        with single_sample(self._model) if lone else nullcontext(), self._compiled_for(micro_batch, *state):
            yield

    def _compiled_for(self, micro_batch: MicroBatch, *state: str) -> AbstractContextManager[None]:
        """The context of any pass in which code may be compiled."""
        if self._compute.compile == "none" or "torch._dynamo" not in sys.modules:  # auto may have compiled nothing
            return nullcontext()
        return self._sizes.entered(micro_batch.batch, micro_batch.samples, *state)

    @property
    def forwards_together(self) -> bool:
        """Each process computes by itself."""
        return False

    def seed(self, streams: Callable[[int], None]) -> None:
        """One shard a process."""
        streams(0)

    def window(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Accumulate the gradients of all micro-batches."""
        part = self._parts[name]
        self._buffers.keep()
        sums: Sums = {}
        if part.noise is not None:
            part.noise.begin()
        with self._alone(part):
            for i, micro_batch in enumerate(micro_batches):
                add_sums(sums, self._pass(part, micro_batch, scale), micro_batch, name)
                if part.noise is not None and i == 0:
                    self._take_noise(part, micro_batch, scale)
        part.windows += 1
        return sums

    def _pass(self, part: Part, micro_batch: MicroBatch, scale: Scale) -> Loss:
        """Forward and backward of one micro-batch."""
        with self._in_pass(micro_batch, part.name):
            _, loss = run_pass(part.objective, micro_batch, scale, part.precision, self.device)
        return loss

    def _take_noise(self, part: Part, micro_batch: MicroBatch, scale: Scale, square: Tensor | None = None) -> None:
        """Keep the squared norm of what the gradients are now, or `square`."""
        assert part.noise is not None
        if square is None:
            square = squared_norm(p.grad for p in part.trainable.values())
        loss_scale = part.precision.loss_scale
        part.noise.take(square, micro_batch, scale, None if loss_scale is None else loss_scale.scale)

    def notes(self, name: str) -> Notes:
        """Names of the parameters that the window gave no gradient."""
        part = self._parts[name]
        if not part.windows or not lacks_gradients(part.trainable.values()):
            return {}
        return {"unused": [name for name, p in part.trainable.items() if p.grad is None]}

    def heed(self, name: str, notes: Sequence[Notes]) -> None:
        """Unused on all ranks: no gradient at all, as one process would have it. New names are warned of once."""
        part = self._parts[name]
        for unused in part.unused.heed(notes, part.windows):
            part.trainable[unused].grad = None

    def step(self, name: str, max_norm: float | None) -> Outcome:
        """Clip and update; after the last learner's update the average takes the weights in."""
        part = self._parts[name]
        outcome = part.update.apply(max_norm, part.whole)
        doubtful = part.skippable or part.whole is not None
        if doubtful:
            self._buffers.take_back_unless(outcome.applied)
        if part.noise is not None:
            outcome = outcome._replace(sums=part.noise.sums(outcome.norm, name))
        if self._average is not None:
            # A window counts where none of its updates was skipped.
            self._applied = outcome.applied if name == self._first else self._applied * outcome.applied
            if name == self._last:
                self._average.update(self._applied if doubtful else None)
        if part.whole is not None:
            lost = 1 - part.whole.long()
            part.voids = lost if part.voids is None else part.voids + lost
        self._buffers.in_window, part.update.entered = False, False
        self._steps += 1
        return outcome

    def advance(self, interval: Literal["epoch", "evaluation"], value: float | None) -> None:
        """Move the schedulers of that interval on."""
        for part in self._parts.values():
            part.update.advance(interval, value)

    def forward(self, name: str, micro_batch: MicroBatch) -> Loss:
        """Loss of one learner on a batch, without gradient."""
        part = self._parts[name]
        with torch.no_grad(), part.precision.autocast(), self._compiled_for(micro_batch, name, "forward"):
            return Loss(*part.objective(to_device(micro_batch.batch, self.device)))

    def run(self, micro_batch: MicroBatch, function: Callable[[nn.Module, Batch], T]) -> T:
        """function(model, batch on the device) without gradient."""
        self._compute.begin_pass()
        precision = self._parts[self._first].precision
        with torch.no_grad(), precision.autocast(), self._compiled_for(micro_batch, "run"):
            return function(self._model, to_device(micro_batch.batch, self.device))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the model, if there are such; entering it again inside changes nothing."""
        with nullcontext() if self._average is None else self._average.swapped():
            yield

    def state(self) -> dict[str, Any]:
        """What is saved of the model, its average, and each learner's update."""
        return {
            "model": only_kept(self._model, bare_keys(self._model, self._model.state_dict())),
            "average": None if self._average is None else self._average_by(bare_keys, self._average.state()),
            "learners": {name: part.update.state() for name, part in self._parts.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load model, average and updates; an average that was not saved begins anew, other absent parts stay."""
        if state["learners"] and list(state["learners"]) != list(self._parts):
            raise ValueError(f"it is of {', '.join(state['learners'])}, this run of {', '.join(self._parts)}")
        if state["model"]:
            load_weights(self._model, state["model"])
        for name, learner in state["learners"].items():
            update = self._parts[name].update
            update.load(adopted(update, learner))
        if self._make_average is not None:
            self._average = self._make_average(self._model)
            if state["average"] is not None:
                self._average.load(self._average_by(own_keys, state["average"]))

    def _average_by(
        self, names: Callable[[nn.Module, Mapping[str, Tensor]], dict[str, Tensor]], average: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The average's state by names of this kind."""
        return {**average, "averages": names(self._model, average["averages"])}

    def close(self) -> None:
        """Say how often parameters went unused."""
        for part in self._parts.values():
            part.unused.summarise(part.windows)


def owned_by(
    optimizers: Mapping[str, torch.optim.Optimizer], wants: Mapping[str, nn.Parameter]
) -> dict[str, dict[str, nn.Parameter]]:
    """The parameters, of those that want a gradient, that each optimizer's learner trains; all where it is alone.

    Raises ConfigError where one of several optimizers has none of them, or one that another has.
    """
    if len(optimizers) == 1:
        return {name: dict(wants) for name in optimizers}
    found: dict[str, dict[str, nn.Parameter]] = {}
    for name, optimizer in optimizers.items():
        ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
        found[name] = {key: p for key, p in wants.items() if id(p) in ids}
        if not found[name]:
            raise ConfigError(
                f"the optimizer of {name} has no parameter of the model that wants a gradient",
                "make it from the parameters of the model that is handed in",
            )
        for other in list(found)[:-1]:
            if both := found[other].keys() & found[name].keys():
                raise ConfigError(
                    f"{min(both)} is in the optimizers of both {other} and {name}",
                    "give each optimizer the parameters that its loss alone trains",
                )
    return found
