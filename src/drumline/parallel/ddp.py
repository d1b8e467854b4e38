"""A replica a process, gradients summed over all ranks by torch's DistributedDataParallel."""

# No postponed annotations here: torch compares those of a communication hook as objects.
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drumline.config.parallel import DdpParallel
from drumline.errors import DrumlineError
from drumline.parallel.groups import Groups
from drumline.parallel.objective import add_sums, preserved, run_pass
from drumline.parallel.single import Single
from drumline.parallel.strategy import MakeOptimizer, MicroBatch, Rates, Scale, Sums, Task

BUFFER_BUCKET_BYTES = 250 * 2**20
"""Most bytes of buffers in one broadcast, as in DistributedDataParallel."""

REDUCED_TWICE = "mark a variable ready only once"
"""What torch says where a parameter's hook fires again in one pass."""


class Reduction:
    """What the communication hook knows of a backward pass."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.whole = False
        """Whether the last bucket was sent; torch sends them in order."""


def sum_bucket(reduction: Reduction, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Communication hook: start the all-reduce of one bucket, without dividing.

    torch divides by the world size first; here losses are scaled by the whole window's count already, so that a plain
    sum is the gradient, and one pass over the buckets is saved.
    """
    reduction.whole = reduction.whole or bucket.is_last()
    work = dist.all_reduce(bucket.buffer(), group=reduction.group, async_op=True)
    reduced: torch.futures.Future[Tensor] = work.get_future().then(first_value)
    return reduced


def first_value(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    """The reduced bucket out of a collective's future."""
    return future.value()[0]


class Ddp(Single):
    """Single's window with a synchronising last pass.

    Parameters that a pass did not use (pytorch #43259) would leave their buckets waiting. The hook sees at once that
    the reduction is not whole; this rank then completes it with zero gradients for just those parameters, whatever the
    other ranks used. No search of the graph in the usual step, and no hang.
    """

    def __init__(self, groups: Groups, settings: DdpParallel, precision: str, compile_objective: bool = False) -> None:
        super().__init__(groups.device, precision, compile_objective, groups.world.rank)
        assert groups.train is not None
        self._groups = groups
        self._settings = settings
        self._reduction = Reduction(groups.train)
        self._missing: list[str] = []
        self._idle = False
        self._laid_out = False

    def setup(self, model: nn.Module, task: Task, make_optimizer: MakeOptimizer, rates: Rates) -> None:
        """Wrap the model and make the optimizer on it."""
        if self._settings.sync_batch_norm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model, self._groups.train)
        super().setup(model, task, make_optimizer, rates)
        self._running = self._buffers.names if self._settings.broadcast_buffers else []
        self._wrapped = self._wrap()
        self._share_buffers([name for name, _ in self._model.named_buffers()])

    def _wrap(self) -> DistributedDataParallel:
        settings = self._settings
        options: dict[str, Any] = {
            "process_group": self._groups.train,
            "bucket_cap_mb": settings.bucket_mb,
            "gradient_as_bucket_view": settings.gradient_as_bucket_view,
            "static_graph": settings.static_graph,
            "find_unused_parameters": settings.find_unused == "always",
            "device_ids": [self.device.index] if self.device.type == "cuda" else None,
        }
        # Not by torch, which shares them before a forward pass: ranks would evaluate and end with different ones.
        # torch 2.13 has a new name for it and warns about the old one.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        wrapped = DistributedDataParallel(self._objective, **options)
        wrapped.register_comm_hook(self._reduction, sum_bucket)
        return wrapped

    def window(self, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Accumulate locally, then reduce in the last pass."""
        if not self._laid_out:
            self._lay_out(micro_batches[0])
        self._buffers.keep()
        sums: Sums = {}
        last = len(micro_batches) - 1
        self._idle = not any(micro_batch.weight for micro_batch in micro_batches)
        self._missing = []
        for i, micro_batch in enumerate(micro_batches):
            if micro_batch.weight == 0:
                with preserved(self._model, self.device):
                    self._run(micro_batch, scale, synchronise=i == last)
            else:
                add_sums(sums, self._run(micro_batch, scale, synchronise=i == last), micro_batch)
        self._windows += 1
        self._share_buffers(self._running)
        return sums

    def _share_buffers(self, names: Sequence[str]) -> None:
        """Give every rank rank 0's."""
        if names:
            buffers = [self._model.get_buffer(name) for name in names]
            dist._broadcast_coalesced(self._reduction.group, buffers, BUFFER_BUCKET_BYTES, 0)

    def _run(self, micro_batch: MicroBatch, scale: Scale, *, synchronise: bool) -> Any:
        self._wrapped.require_backward_grad_sync = synchronise
        self._reduction.whole = False
        try:
            target, loss = run_pass(self._wrapped, micro_batch, scale, self._precision, self.device)
            if synchronise:
                self._complete(target)
        except RuntimeError as error:
            if REDUCED_TWICE not in str(error):
                raise
            raise DrumlineError(
                "re-entrant activation checkpointing hides parameters, so that it cannot be told which were used",
                "call torch.utils.checkpoint with use_reentrant=False, or use every parameter in every forward pass",
            ) from error
        return loss

    def _lay_out(self, micro_batch: MicroBatch) -> None:
        """Run one pass that leaves no trace: torch orders its buckets by the first backward it sees.

        Without it, fresh and resumed runs would add gradients in different orders.
        """
        with preserved(self._model, self.device):
            self._run(micro_batch, Scale(0.0, 0.0), synchronise=True)
        self._update.clear()
        self._laid_out = True

    def _complete(self, target: Tensor) -> None:
        """Send the buckets that wait for parameters which this pass did not use."""
        by_torch = self._settings.static_graph or self._settings.find_unused == "always"
        if self._reduction.whole and not by_torch:
            return
        self._missing = [name for name, p in self._trainable.items() if p.grad is None]
        if by_torch:
            return
        used = parameters_of_graph(target)
        missing = {name: p for name, p in self._trainable.items() if id(p) not in used}
        if self._settings.find_unused == "never":
            raise DrumlineError(
                f"no gradient for {', '.join(self._missing or missing)}",
                "use these parameters in every forward pass, freeze them, or set parallel.find_unused=auto",
            )
        torch.autograd.backward(list(missing.values()), [torch.zeros_like(p) for p in missing.values()])
        if not self._reduction.whole:
            raise DrumlineError(
                "the gradient reduction could not be completed",
                "re-entrant checkpointing hides parameters: call torch.utils.checkpoint with use_reentrant=False",
            )

    def notes(self) -> dict[str, list[str]]:
        """Names of the parameters that this rank did not use in the window, or that it had no rows of its own."""
        if self._idle:
            return {"idle": []}
        return {"unused": self._missing} if self._missing else {}

    def close(self) -> None:
        """Drop the wrapper and all else that holds the group: only without any holder do gloo's sockets close."""
        self._wrapped = None  # type: ignore[assignment]
        self._reduction = None  # type: ignore[assignment]
        super().close()


def parameters_of_graph(target: Tensor) -> set[int]:
    """Ids of the parameters that a backward pass from this tensor reaches."""
    used: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [target.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            used.add(id(node.variable))
        waiting.extend(following for following, _ in node.next_functions)
    return used
