"""A replica a process, gradients summed over all ranks by torch's DistributedDataParallel."""

# No postponed annotations here: torch compares those of a communication hook as objects.
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drumline.config.parallel import DdpParallel
from drumline.errors import DrumlineError
from drumline.parallel.batch_norm import normalised_apart
from drumline.parallel.buffers import share_buffers, share_values
from drumline.parallel.compression import Wire, make_wire
from drumline.parallel.compute import Compute
from drumline.parallel.groups import Groups
from drumline.parallel.handover import hand_over
from drumline.parallel.materialise import room_for_values
from drumline.parallel.objective import add_sums, preserved, run_pass
from drumline.parallel.reduction import LateReduction, Reduction
from drumline.parallel.single import Part, Single
from drumline.parallel.strategy import Learner, Loss, MakeAverage, MicroBatch, Notes, Outcome, Scale, Sums
from drumline.parallel.unused import parameters_of_graph

BUCKET_MB, UNCUT_BUCKET_MB = 25.0, 200.0
"""Of reductions that begin during the backward pass (torch's own), and of such that all begin at its end."""

REDUCED_TWICE = "mark a variable ready only once"
"""What torch says where a parameter's hook fires again in one pass."""


def sum_bucket(reduction: Reduction, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Communication hook: start the all-reduce of one bucket, without dividing.

    torch divides by the world size first; here losses are scaled by the whole window's count already, so that a plain
    sum is the gradient, and one pass over the buckets is saved.
    """
    return reduction.send(bucket)


@dataclass
class Replica:
    """The wrapper of one learner, and what it saw of the window that is running."""

    part: Part
    wrapped: nn.Module
    """torch's DistributedDataParallel, or the bare objective where all is reduced after the backward pass."""
    reduction: Reduction
    missing: list[str] = field(default_factory=list)
    """Parameters that this rank did not use."""
    idle: bool = False
    """Whether this rank has no rows of its own."""
    laid_out: bool = False


class Ddp(Single):
    """Single's window with a synchronising last pass.

    Parameters that a pass did not use (pytorch #43259) would leave their buckets waiting. The hook sees at once that
    the reduction is not whole; this rank then completes it with zero gradients for just those parameters, whatever the
    other ranks used. No search of the graph in the usual step, and no hang.
    """

    def __init__(
        self,
        groups: Groups,
        settings: DdpParallel,
        compute: Compute,
        *,
        gradient_noise: bool = False,
    ) -> None:
        super().__init__(groups.device, compute, groups.world.rank, gradient_noise=gradient_noise)
        assert groups.train is not None
        self._group: dist.ProcessGroup = groups.train
        self._side = groups.side
        self._settings = settings
        self._graphs = graphs_of(compute, settings)
        self._replicas: dict[str, Replica] = {}
        self._wires: dict[str, Wire] = {}
        """By learner, while there is no wrapper."""

    def setup(self, model: nn.Module, learners: Mapping[str, Learner], average: MakeAverage | None = None) -> None:
        """Make the optimizers on the model and wrap it."""
        if self._settings.sync_batch_norm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model, self._group)
        super().setup(model, learners, average)

    def _place(self, model: nn.Module) -> nn.Module:
        """Single's; what has values on rank 0 only, which has read them, is sent to the others."""
        is_sent = room_for_values(model, self._side, self.device)
        placed = super()._place(model)
        return share_values(placed, self._group) if is_sent else placed

    def _wrap_parts(self) -> None:
        """A wrapper for each learner, around what it trains alone."""
        for name, part in self._parts.items():
            with self._alone(part):
                self._replicas[name] = self._wrap(part)
        self._share([name for name, _ in self._model.named_buffers()])

    def _wrap(self, part: Part, wire: Wire | None = None, *, again: bool = False) -> Replica:
        """wire: what the reduction goes over, made here where it is none; again: all ranks have equal weights."""
        settings = self._settings
        wire = wire or make_wire(settings, self._group, self.device, part.trainable)
        if reduces_late(self._compute, settings):
            dist._verify_params_across_processes(self._group, list(part.trainable.values()), None)
            if not again:
                share_values(part.objective, self._group)
            late = LateReduction(wire, part.trainable, round(bucket_mb(self._compute, settings) * 2**20))
            return Replica(part, part.objective, late, laid_out=True)
        options: dict[str, Any] = {
            "process_group": self._group,
            "bucket_cap_mb": bucket_mb(self._compute, settings),
            "gradient_as_bucket_view": settings.gradient_as_bucket_view,
            "static_graph": settings.static_graph,
            "find_unused_parameters": settings.find_unused == "always",
            "device_ids": [self.device.index] if self.device.type == "cuda" else None,
            "init_sync": not again,
        }
        # Not by torch, which shares them before a forward pass: ranks would evaluate and end with different ones.
        # torch 2.13 has a new name for it and warns about the old one.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        wrapped, reduction = DistributedDataParallel(part.objective, **options), Reduction(wire)
        wrapped.register_comm_hook(reduction, sum_bucket)
        return Replica(part, wrapped, reduction)

    def window(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Accumulate locally, then reduce in the last pass."""
        replica = self._replicas[name]
        part = replica.part
        with self._alone(part):
            if not replica.laid_out:
                self._lay_out(replica, micro_batches[0])
            self._buffers.keep()
            sums = self._passes(replica, micro_batches, scale)
        part.windows += 1
        if self._settings.broadcast_buffers:
            self._share(self._buffers.names)
        if self.may_be_void:
            part.whole = self._canary()
        return sums

    @property
    def may_be_void(self) -> bool:
        """A GPU reduces for itself: its host makes the step before it knows that the reduction came to its end."""
        return self.device.type == "cuda"

    def _canary(self) -> Tensor:
        """Whether all that was reduced before it came to its end: one element more, summed last, says so."""
        ones = torch.ones((), device=self.device)
        dist.all_reduce(ones, group=self._group)
        return ones == dist.get_world_size(self._group)

    def _passes(self, replica: Replica, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        sums: Sums = {}
        part, last = replica.part, len(micro_batches) - 1
        replica.idle = not any(micro_batch.weight for micro_batch in micro_batches)
        replica.missing = []
        if part.noise is not None:
            part.noise.begin()
            replica.reduction.squares = [] if last == 0 else None
        for i, micro_batch in enumerate(micro_batches):
            if micro_batch.weight == 0:
                with preserved(self._model, self.device):
                    self._run(replica, micro_batch, scale, synchronise=i == last)
                continue
            add_sums(sums, self._run(replica, micro_batch, scale, synchronise=i == last), micro_batch, part.name)
            if part.noise is not None and i == 0:
                squares = replica.reduction.squares
                self._take_noise(part, micro_batch, scale, torch.stack(squares).sum() if squares else None)
        return sums

    def _share(self, names: Sequence[str]) -> None:
        """Give every rank rank 0's buffers."""
        share_buffers(self._model, names, self._group)

    def _run(self, replica: Replica, micro_batch: MicroBatch, scale: Scale, *, synchronise: bool) -> Loss:
        if isinstance(replica.wrapped, DistributedDataParallel):
            replica.wrapped.require_backward_grad_sync = synchronise
        replica.reduction.whole = False
        precision = replica.part.precision
        try:
            with self._in_pass(micro_batch, replica.part.name), self._graphs():
                target, loss = run_pass(replica.wrapped, micro_batch, scale, precision, self.device)
            if synchronise:
                self._complete(replica, target)
        except RuntimeError as error:
            if REDUCED_TWICE not in str(error):
                raise
            raise DrumlineError(
                "re-entrant activation checkpointing hides parameters, so that it cannot be told which were used",
                "call torch.utils.checkpoint with use_reentrant=False, or use every parameter in every forward pass",
            ) from error
        return loss

    def _lay_out(self, replica: Replica, micro_batch: MicroBatch) -> None:
        """Run one pass that leaves no trace: torch orders its buckets by the first backward it sees.

        Without it, fresh and resumed runs would add gradients in different orders. Compression takes no part in it.
        """
        reduction = replica.reduction
        wire, reduction.wire = reduction.wire, Wire(self._group)
        with preserved(self._model, self.device):
            self._run(replica, micro_batch, Scale(0.0, 0.0), synchronise=True)
        reduction.wire = wire
        replica.part.update.clear()
        replica.laid_out = True

    def _complete(self, replica: Replica, target: Tensor) -> None:
        """Send the buckets that wait for parameters which this pass did not use, or all of them."""
        trainable = replica.part.trainable
        if isinstance(replica.reduction, LateReduction):
            unused = replica.reduction.run()
            replica.missing = [name for name in trainable if name in unused]
            if unused and self._settings.find_unused == "never":
                raise no_gradient_for(replica.missing)
            return
        by_torch = self._settings.static_graph or self._settings.find_unused == "always"
        if replica.reduction.whole and not by_torch:
            return
        replica.missing = [name for name, p in trainable.items() if p.grad is None]
        if by_torch:
            return
        used = parameters_of_graph(target)
        missing = {name: p for name, p in trainable.items() if id(p) not in used}
        if self._settings.find_unused == "never":
            raise no_gradient_for(replica.missing or list(missing))
        torch.autograd.backward(list(missing.values()), [torch.zeros_like(p) for p in missing.values()])
        if not replica.reduction.whole:
            raise DrumlineError(
                "the gradient reduction could not be completed",
                "re-entrant checkpointing hides parameters: call torch.utils.checkpoint with use_reentrant=False",
            )

    def _try_window(self, name: str, micro_batches: Sequence[MicroBatch]) -> None:
        """Not through the wrapper, which would reduce: a rank whose memory runs out would leave the others waiting."""
        with normalised_apart(self._model):
            super().window(name, micro_batches, Scale(0.0, 0.0))

    def _drop_trial(self, name: str) -> None:
        """Compression took no part in it."""
        super().discard(name)

    def give_up(self) -> None:
        """Drop gradients, wrappers, and all else that holds the group."""
        self._wires |= {name: replica.reduction.wire for name, replica in self._replicas.items()}
        for wire in self._wires.values():
            wire.regroup(None)
        self._replicas = {}
        self._regroup(None)
        super().give_up()

    def _regroup(self, group: dist.ProcessGroup | None) -> None:
        self._group = group  # type: ignore[assignment]
        for module in self._model.modules():
            if isinstance(module, nn.SyncBatchNorm):
                module.process_group = group

    def hand_over(self, groups: Groups, giver: int, *, takes: bool) -> None:
        """Give weights, average, optimizer and schedule of one rank to those that take them."""
        assert groups.train is not None
        state = self.shared() if groups.world.rank == giver else None
        found = hand_over(state, giver, groups.train, self.device, takes=takes)
        if takes:
            self.take_over(found)

    def rebuild(self, groups: Groups, steps: int) -> None:
        """Wrap the model for a new training group; buckets are laid out anew before the next window."""
        super().rebuild(groups, steps)
        assert groups.train is not None
        self._regroup(groups.train)
        for name, part in self._parts.items():
            wire = self._wires.pop(name)
            wire.regroup(groups.train)
            part.whole = None
            with self._alone(part):
                self._replicas[name] = self._wrap(part, wire, again=True)

    def notes(self, name: str) -> Notes:
        """Names of the parameters that this rank did not use in the window, or that it had no rows of its own."""
        replica = self._replicas[name]
        if replica.idle:
            return {"idle": []}
        return {"unused": replica.missing} if replica.missing else {}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Single's, with rank 0's buffers on all ranks: what a checkpoint holds is what is evaluated."""
        self._meet()  # outside: a rank that waits there may be asked for its weights
        with super().averaged():
            self._settle()
            yield

    def step(self, name: str, max_norm: float | None) -> Outcome:
        """Single's; what compression left out of a skipped window's gradient is forgotten with it."""
        part, wire = self._replicas[name].part, self._replicas[name].reduction.wire
        before = unit_of(part)
        before = before.clone() if isinstance(before, Tensor) else before
        outcome = super().step(name, max_norm)
        if part.skippable:
            wire.settle(outcome.applied, unit_of(part) / before)
        return outcome

    def discard(self, name: str) -> None:
        """Drop what the window did."""
        super().discard(name)
        self._replicas[name].reduction.wire.take_back()

    def state(self) -> dict[str, Any]:
        """Single's, with rank 0's buffers on all ranks, and what compression carries from window to window."""
        self._meet()
        self._settle()
        state = super().state()
        for name, replica in self._replicas.items():
            compression = replica.reduction.wire.state(unit_of(replica.part))
            if compression is not None:
                state["learners"][name]["compression"] = compression
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Single's; compression that was not saved begins anew."""
        super().load(state)
        for name, replica in self._replicas.items():
            compression = state["learners"].get(name, {}).get("compression")
            if compression is not None:
                replica.reduction.wire.load(compression, unit_of(replica.part))

    def _meet(self) -> None:
        """Before `_settle`: a rank that is alone there would wait for the others to no end."""
        if not self._settings.broadcast_buffers:
            self._side.exchange("buffers")

    def _settle(self) -> None:
        """Give every rank rank 0's buffers, where that does not happen after each window."""
        if not self._settings.broadcast_buffers:
            self._share(self._buffers.names)

    def close(self) -> None:
        """Drop the wrappers and all else that holds the group: only without any holder do gloo's sockets close."""
        self._replicas = {}
        self._group = None  # type: ignore[assignment]
        super().close()


def no_gradient_for(names: Sequence[str]) -> DrumlineError:
    """What find_unused: never makes of parameters that a pass did not use."""
    return DrumlineError(
        f"no gradient for {', '.join(names)}",
        "use these parameters in every forward pass, freeze them, or set parallel.find_unused=auto",
    )


def reduces_late(compute: Compute, settings: DdpParallel) -> bool:
    """Whether a backward pass gives all its gradients at its end, so that there is nothing to be reduced beside it."""
    by_torch = settings.static_graph or settings.find_unused == "always" or not settings.gradient_as_bucket_view
    return compute.compile == "whole" and not settings.cut_graphs and not by_torch


def bucket_mb(compute: Compute, settings: DdpParallel) -> float:
    """Size of a gradient bucket in MiB; both automatic ones: benchmarks/results/2026-11-28-ddp-2xh200.md."""
    if settings.bucket_mb != "auto":
        return settings.bucket_mb
    return UNCUT_BUCKET_MB if compute.compile == "whole" and not settings.cut_graphs else BUCKET_MB


def graphs_of(compute: Compute, settings: DdpParallel) -> Callable[[], AbstractContextManager[None]]:
    """The context of a pass that may compile: does torch cut the graph where buckets end, as it does by itself?

    Uncut, a compiled graph gives all its gradients at its end, and nothing is reduced beside it. Compiled blocks are
    cut already. torch cuts behind the first MiB, so it cannot where buckets are smaller.
    """
    cuts = settings.cut_graphs and bucket_mb(compute, settings) * 2**20 >= dist._DEFAULT_FIRST_BUCKET_BYTES
    uncut = compute.compile in ("blocks", "auto") or (compute.compile == "whole" and not cuts)
    return one_graph if uncut else nullcontext


@contextmanager
def one_graph() -> Iterator[None]:
    """Inside, torch.compile does not cut graphs for DistributedDataParallel."""
    import torch._dynamo.config as dynamo  # slow to import, and not needed where nothing is compiled

    before, dynamo.optimize_ddp = dynamo.optimize_ddp, False
    try:
        yield
    finally:
        dynamo.optimize_ddp = before


def unit_of(part: Part) -> Tensor | float:
    """What one gradient is multiplied by: the loss scale, where there is one."""
    return 1.0 if part.precision.loss_scale is None else part.precision.loss_scale.scale
