"""Parameters, gradients and optimizer state sharded over all ranks by torch's fully_shard (FSDP2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from drumline.config.parallel import FsdpParallel
from drumline.errors import ConfigError
from drumline.parallel.buffers import share_buffers
from drumline.parallel.compute import Compute
from drumline.parallel.fsdp_gradients import Gradients, ShardNorm
from drumline.parallel.fsdp_model import ShardedModel
from drumline.parallel.fsdp_proof import Proof
from drumline.parallel.fsdp_state import in_parts, loaded, room_for, saved
from drumline.parallel.groups import Groups
from drumline.parallel.keys import fitting
from drumline.parallel.objective import add_sums, preserved, run_pass, to_device
from drumline.parallel.precision import LossScale, Precision
from drumline.parallel.ready import rebind
from drumline.parallel.single import Part, Single
from drumline.parallel.strategy import Batch, Learner, Loss, MicroBatch, Notes, Outcome, Rates, Scale, Sums, T
from drumline.parallel.update import Update

logger = logging.getLogger("drumline")


class Fsdp(Single):
    """Single's window over a sharded model.

    All ranks must run the same units in the same order, since each gathers its weights together with the others; what
    happens inside a unit, and in all that is in none, may differ. Where gathered weights are kept until the backward
    pass, gradients are summed up over the window and reduced once; else each pass reduces its own. Optimizers that
    treat every element alike run on plain tensors, this rank's parts.
    """

    def __init__(
        self, groups: Groups, settings: FsdpParallel, compute: Compute, *, gradient_noise: bool = False
    ) -> None:
        super().__init__(groups.device, compute, groups.world.rank, gradient_noise=gradient_noise)
        assert groups.train is not None
        self._groups: Groups = groups
        self._side = groups.side
        self._settings = settings
        self._sharded: ShardedModel
        self._gradients: Gradients
        self._idle = False

    @property
    def forwards_together(self) -> bool:
        """A unit's weights are gathered from all ranks in each forward pass."""
        return True

    def _place(self, model: nn.Module) -> nn.Module:
        """Shard it; the device never holds more of it whole than a unit."""
        if self._compute.cuda_graphs:
            raise ConfigError(
                "train.cuda_graphs records parameters at fixed addresses, and fsdp gathers them anew for each pass",
                "set it to false, or parallel.kind to ddp",
            )
        self._compute.apply(model)
        self._sharded = ShardedModel(model, self._groups, self._settings, self._compute.precision)
        del self._groups
        self._gradients = Gradients(self._sharded.root)
        self._proof = Proof(self._sharded.peers, self.device)
        self._share([name for name, _ in model.named_buffers()], model)
        return model

    def _make_optimizer(self, learner: Learner) -> torch.optim.Optimizer:
        """The learner's, over shards, even where it was made before there were any."""
        return self._sharded.optimizer(learner.make_optimizer)

    def _make_update(self, optimizer: torch.optim.Optimizer, rates: Rates, precision: Precision) -> Update:
        sharded = self._sharded
        if precision.loss_scale is not None:
            precision.loss_scale = LossScale(sharded.home)
        rebind(optimizer, sharded.locals_for(optimizer))
        norm = ShardNorm(sharded.peers, sharded.num_copies, self.device)
        return Update(optimizer, rates, precision.loss_scale, norm)

    def window(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Run all passes; the last one, or each, reduces."""
        part, gradients = self._parts[name], self._gradients
        self._buffers.keep()
        self._idle = not any(micro_batch.weight for micro_batch in micro_batches)
        gradients.used.clear()
        sums: Sums = {}
        if part.noise is not None:
            part.noise.begin()
        passes = self._level(micro_batches)
        with self._alone(part), self._sharded.root.entered():
            for i, micro_batch in enumerate(passes):
                self._sharded.synchronise(last=i == len(passes) - 1)
                gradients.squares = [] if part.noise is not None and i == 0 else None
                if micro_batch.weight == 0:
                    with preserved(self._model, self.device):
                        self._pass(part, micro_batch, scale)
                    continue
                add_sums(sums, self._pass(part, micro_batch, scale), micro_batch, name)
                if gradients.squares:
                    self._take_noise(part, micro_batch, scale, torch.stack(gradients.squares).sum())
            gradients.used.update(self._sharded.reduce_whole())
        part.windows += 1
        self._share(self._buffers.names, self._model)
        return sums

    def _level(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """As many passes as the rank with the most has, where each pass is a collective; those added weigh nothing."""
        if self._sharded.keeps_whole:
            return micro_batches
        missing = max(self._side.exchange("passes", len(micro_batches))) - len(micro_batches)
        return [*micro_batches, *[micro_batches[0]._replace(weight=0)] * missing]

    def _pass(self, part: Part, micro_batch: MicroBatch, scale: Scale) -> Loss:
        """Forward and backward of one micro-batch, all ranks together."""
        with self._in_pass(micro_batch, part.name):
            _, loss = run_pass(self._inside(part.objective), micro_batch, scale, part.precision, self.device)
        return loss

    def _inside(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function as it runs inside the root, which sees no argument and has nothing to copy or to cast."""

        def call(*arguments: Any) -> T:
            result: T = self._sharded.root(lambda: function(*arguments))
            return result

        return call

    def _share(self, names: Sequence[str], model: nn.Module) -> None:
        """Give every rank rank 0's buffers."""
        share_buffers(model, names, self._sharded.peers.group)

    def notes(self, name: str) -> Notes:
        """Names of the parameters that this rank did not use in the window, or that it had no rows of its own."""
        if self._idle:
            return {"idle": []}
        part, used = self._parts[name], self._gradients.used
        unused = [key for key, p in part.trainable.items() if p not in used] if part.windows else []
        return {"unused": unused} if unused else {}

    def step(self, name: str, max_norm: float | None) -> Outcome:
        """Single's, on this rank's parts; the first update must have moved them."""
        self._sharded.hand_over()
        check = self._proof.before(name, self._sharded.gradients())
        outcome = super().step(name, max_norm)
        if check is not None:
            self._proof.after(name, check, outcome)
        return outcome._replace(norm=outcome.norm.to(self.device), applied=outcome.applied.to(self.device))

    def discard(self, name: str) -> None:
        """Drop what the window did, on the shards too."""
        self._sharded.hand_over()
        super().discard(name)

    @property
    def can_rebuild(self) -> bool:
        """What fully_shard has made keeps its groups for good."""
        return False

    def give_up(self) -> None:
        """Drop gradients and all that holds the groups; shards stay, so that they can be saved."""
        self._sharded.hand_over()
        super().give_up()
        self._sharded.reshard()
        self._gradients.close()
        self._sharded.close()

    def forward(self, name: str, micro_batch: MicroBatch) -> Loss:
        """Loss of one learner on a batch, without gradient; all ranks make it together."""
        part, sized = self._parts[name], self._compiled_for(micro_batch, name, "forward")
        with torch.no_grad(), part.precision.autocast(), self._sharded.root.entered(), sized:
            return Loss(*self._inside(part.objective)(to_device(micro_batch.batch, self.device)))

    def run(self, micro_batch: MicroBatch, function: Callable[[nn.Module, Batch], T]) -> T:
        """function(model, batch on the device) without gradient; all ranks make it together."""
        precision = self._parts[self._first].precision
        self._compute.begin_pass()
        sized = self._compiled_for(micro_batch, "run")
        with torch.no_grad(), precision.autocast(), self._sharded.root.entered(), sized:
            return self._inside(function)(self._model, to_device(micro_batch.batch, self.device))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Single's; what was gathered of other weights is given back before and after."""
        self._sharded.reshard()
        with super().averaged():
            try:
                yield
            finally:
                self._sharded.reshard()

    def state(self, *, keep: bool | None = None) -> dict[str, Any]:
        """Single's, whole and on the CPU of the ranks that keep it (None: of rank 0).

        The others have only what is not sharded.
        """
        keep = self._rank == 0 if keep is None else keep
        self._side.exchange("sharded weights")  # a rank that is alone here would wait for the others to no end
        self._sharded.reshard()
        return saved(super().state(), self._sharded, self._optimizers(), keep=keep)

    def parts(self) -> dict[str, Any]:
        """Single's, with a Part of this rank where something is sharded."""
        self._sharded.reshard()
        return in_parts(super().state(), self._sharded, self._optimizers())

    def room(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Where this rank's share of such a state goes, a Part where it is sharded here."""
        return room_for(state, self._sharded, self._optimizers())

    def load(self, state: Mapping[str, Any]) -> None:
        """Take this rank's parts out of what any strategy's `state` gave; all ranks have all of it."""
        self._sharded.reshard()
        model = fitting(self._model, state["model"]) if state["model"] else {}
        super().load(loaded({**state, "model": model}, self._sharded, self._optimizers()))

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {name: part.update.optimizer for name, part in self._parts.items()}

    def close(self) -> None:
        """Drop all that holds the groups: only without any holder do gloo's sockets close.

        The model stays sharded: its parameters are DTensors, of which this rank has a part (`to_local`).
        """
        self._sharded.close()
        self._gradients.close()
        super().close()
