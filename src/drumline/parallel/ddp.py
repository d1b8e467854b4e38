"""A replica a process, gradients summed over all ranks by torch's DistributedDataParallel."""

# No postponed annotations here: torch compares those of a communication hook as objects.
import inspect
import logging
from collections import Counter
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

logger = logging.getLogger("drumline")


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
        super().__init__(groups.device, precision, compile_objective)
        assert groups.train is not None
        self._groups = groups
        self._settings = settings
        self._reduction = Reduction(groups.train)
        self._missing: list[str] = []
        self._unused_windows: Counter[str] = Counter()
        self._laid_out = False

    def setup(self, model: nn.Module, task: Task, make_optimizer: MakeOptimizer, rates: Rates) -> None:
        """Wrap the model and make the optimizer on it."""
        if self._settings.sync_batch_norm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model, self._groups.train)
        super().setup(model, task, make_optimizer, rates)
        self._wrapped = self._wrap()

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
        # torch 2.13 has a new name for it and warns about the old one.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options[sync] = settings.broadcast_buffers and has_running_buffers(self._model)
        wrapped = DistributedDataParallel(self._objective, **options)
        wrapped.register_comm_hook(self._reduction, sum_bucket)
        return wrapped

    def window(self, micro_batches: Sequence[MicroBatch], scale: Scale) -> Sums:
        """Accumulate locally, then reduce in the last pass."""
        if not self._laid_out:
            self._lay_out(micro_batches[0])
        sums: Sums = {}
        last = len(micro_batches) - 1
        for i, micro_batch in enumerate(micro_batches):
            if micro_batch.weight == 0:
                with preserved(self._model, self.device):
                    self._run(micro_batch, scale, synchronise=i == last)
            else:
                add_sums(sums, self._run(micro_batch, scale, synchronise=i == last), micro_batch)
        self._windows += 1
        return sums

    def _run(self, micro_batch: MicroBatch, scale: Scale, *, synchronise: bool) -> Any:
        self._wrapped.require_backward_grad_sync = synchronise
        self._reduction.whole = False
        target, loss = run_pass(self._wrapped, micro_batch, scale, self._precision, self.device)
        if synchronise:
            self._complete(target)
        return loss

    def _lay_out(self, micro_batch: MicroBatch) -> None:
        """Run one pass that leaves no trace: torch orders its buckets by the first backward it sees.

        Without it, fresh and resumed runs would add gradients in different orders.
        """
        with preserved(self._model, self.device):
            self._run(micro_batch, Scale(0.0, 0.0), synchronise=True)
        self._missing = []
        self._update.clear()
        self._laid_out = True

    def _complete(self, target: Tensor) -> None:
        """Send the buckets that wait for parameters which this pass did not use."""
        self._missing = []
        if self._reduction.whole or self._settings.static_graph or self._settings.find_unused == "always":
            return
        used = parameters_of_graph(target)
        missing = {n: p for n, p in self._model.named_parameters() if p.requires_grad and id(p) not in used}
        self._missing = [name for name, p in missing.items() if p.grad is None]
        if self._settings.find_unused == "never":
            raise DrumlineError(
                f"no gradient for {', '.join(missing)}",
                "use these parameters in every forward pass, freeze them, or set parallel.find_unused=auto",
            )
        torch.autograd.backward(list(missing.values()), [torch.zeros_like(p) for p in missing.values()])
        if not self._reduction.whole:
            raise DrumlineError(
                "the gradient reduction could not be completed",
                "re-entrant checkpointing hides parameters: call torch.utils.checkpoint with use_reentrant=False",
            )

    def notes(self) -> dict[str, list[str]]:
        """Names of the parameters that this rank did not use in the window."""
        return {"unused": self._missing} if self._missing else {}

    def heed(self, notes: Sequence[dict[str, list[str]]]) -> None:
        """Unused everywhere: no gradient at all, as one process would have it. New names are warned of once."""
        by_name: dict[str, list[int]] = {}
        for rank, note in enumerate(notes):
            for name in note.get("unused", []):
                by_name.setdefault(name, []).append(rank)
        if not by_name:
            return
        parameters = dict(self._model.named_parameters())
        for name, ranks in by_name.items():
            if len(ranks) == len(notes):
                parameters[name].grad = None
        new = {name: ranks for name, ranks in by_name.items() if name not in self._unused_windows}
        self._unused_windows.update(by_name)
        if new and self._groups.world.rank == 0:
            listed = ", ".join(f"{name} ({describe(ranks, len(notes))})" for name, ranks in new.items())
            logger.warning(
                "no gradient in update %d for: %s; such parameters count as zero there", self._windows, listed
            )

    def close(self) -> None:
        """Drop the wrapper; say how often parameters went unused, so that dead weights do not hide."""
        if self._unused_windows and self._groups.world.rank == 0:
            counts = ", ".join(f"{name} in {n} of {self._windows}" for name, n in self._unused_windows.items())
            logger.info("updates without gradient: %s", counts)
        self._wrapped = None  # type: ignore[assignment]
        super().close()


def describe(ranks: Sequence[int], world_size: int) -> str:
    """Say on which ranks."""
    return "on all ranks" if len(ranks) == world_size else f"on rank {', '.join(map(str, ranks))} only"


def has_running_buffers(model: nn.Module) -> bool:
    """Whether there are buffers that a checkpoint holds, and so that training may move (BatchNorm's statistics)."""
    persistent = set(model.state_dict(keep_vars=True))
    return any(name in persistent for name, _ in model.named_buffers())


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
