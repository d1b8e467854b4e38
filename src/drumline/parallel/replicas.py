"""The replicas of one process: how they are copied, what each is besides a `Single`, and how they are kept alike."""

from __future__ import annotations

import copy
import inspect
import types
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.cuda import comm

from drumline.errors import ConfigError, DrumlineError
from drumline.parallel.compute import Compute
from drumline.parallel.flat import FlatGradients, Reduction
from drumline.parallel.single import Part, Single
from drumline.parallel.strategy import Learner, Loss, MakeOptimizer, MicroBatch, Scale, Sums

MIB = 2**20
SENT_BYTES = 250 * MIB
"""Most bytes of weights on their way to the other replicas at once: each has room for them beside its own."""


def copy_to(model: nn.Module, devices: Sequence[torch.device]) -> list[nn.Module]:
    """A copy of the model on each of these devices, or one without values if it is on the meta device.

    Raises ConfigError for a model that cannot be copied.
    """
    if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        raise ConfigError(
            "the model has SyncBatchNorm, which torch can only compute with a process a GPU, and under data_parallel "
            "one process has them all",
            "use parallel.kind=ddp, or BatchNorm, which normalises each micro-batch by itself",
        )
    is_meta = any(p.is_meta for p in model.parameters())
    try:
        copies = (copy.deepcopy(model) for _ in devices)
        return [each if is_meta else each.to(device) for each, device in zip(copies, devices, strict=True)]
    except (RuntimeError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ConfigError(
            f"the model cannot be copied to the other replicas: {error}",
            "let copy.deepcopy(model) work (of torch.nn.utils, weight_norm does in its form in parametrizations), or "
            "use parallel.kind=ddp",
        ) from error


class Replica(Single):
    """One of several: `Single` with gradients in flat buffers, which a Reduction sums."""

    _share_of = "replica"

    def __init__(
        self, device: torch.device, compute: Compute, index: int, bucket_mb: float, *, gradient_noise: bool
    ) -> None:
        super().__init__(device, compute, gradient_noise=gradient_noise)
        self.index = index
        self._bucket_bytes = int(bucket_mb * MIB)
        self.flats: dict[str, FlatGradients] = {}

    def __str__(self) -> str:
        return f"replica {self.index} on {self.device}"

    @property
    def model(self) -> nn.Module:
        """The replica's own."""
        return self._model

    @property
    def parts(self) -> Mapping[str, Part]:
        """By learner."""
        return self._parts

    @property
    def has_average(self) -> bool:
        """Whether this one holds a running average of the weights."""
        return self._average is not None

    def weights(self) -> list[Tensor]:
        """All parameters."""
        return list(self._model.parameters())

    def buffers(self) -> list[Tensor]:
        """Those that a checkpoint holds."""
        return [self._model.get_buffer(name) for name in self._buffers.names]

    def lay_out(self) -> None:
        """Put gradients into flat buffers from the next window on."""
        self.flats = {n: FlatGradients(part.trainable, self._bucket_bytes) for n, part in self._parts.items()}

    def own_code(self) -> None:
        """Give what is compiled its own code object.

        torch keeps what it has compiled with the code, 8 forms at most (torch._dynamo.config.recompile_limit), tries
        them one after the other, and runs uncompiled past that. Each device, and each shape on it, is one more form.
        """
        modules = dict.fromkeys([*self._model.modules(), *(part.objective for part in self._parts.values())])
        for module in modules:
            if module._compiled_call_impl is None or "forward" in vars(module):
                continue
            forward = type(module).forward
            if isinstance(forward, types.FunctionType):
                twin = types.FunctionType(
                    forward.__code__.replace(),
                    forward.__globals__,
                    forward.__name__,
                    forward.__defaults__,
                    forward.__closure__,
                )
                twin.__kwdefaults__ = forward.__kwdefaults__
                module.forward = types.MethodType(twin, module)

    def here(self) -> AbstractContextManager[object]:
        """The context in which `cuda` is this replica's GPU."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def train(self, name: str, micro_batches: Sequence[MicroBatch], scale: Scale, reduction: Reduction) -> Sums:
        """The window of this replica, whose gradients go to the reduction; without micro-batches they are zero."""
        flat = self.flats[name]
        # The noise scale needs the gradient of the first pass alone.
        alone = self._gradient_noise and len(micro_batches) == 1
        sends = self.device.type == "cuda" and not alone
        flat.begin(len(micro_batches), (lambda bucket: reduction.filled(self.index, bucket)) if sends else None)
        sums = self.window(name, micro_batches, scale)
        if sends and not micro_batches:
            for bucket in range(len(flat.buckets)):
                reduction.filled(self.index, bucket)
        return sums

    def _pass(self, part: Part, micro_batch: MicroBatch, scale: Scale) -> Loss:
        if self.flats:
            self.flats[part.name].begin_pass()
        return super()._pass(part, micro_batch, scale)

    def _try_window(self, name: str, micro_batches: Sequence[MicroBatch]) -> None:
        if self.flats:
            self.flats[name].begin(len(micro_batches), None)  # nobody sums them
        super()._try_window(name, micro_batches)

    def close(self) -> None:
        """Let the parameters go."""
        super().close()
        for flat in self.flats.values():
            flat.close()
        self.flats = {}


def twins(learners: Mapping[str, Learner], first: Replica, copied: nn.Module) -> dict[str, Learner]:
    """The learners of another replica, whose model is `copied`.

    They have no scheduler: what it sets on the first replica's optimizer, `follow` takes over.
    """
    pairs = dict(zip(map(id, first.model.parameters()), copied.parameters(), strict=True))
    return {
        name: learner._replace(
            make_optimizer=twin_maker(learner.make_optimizer, first.parts[name].update.optimizer, pairs),
            rates=learner.rates._replace(make_scheduler=None),
        )
        for name, learner in learners.items()
    }


def twin_maker(make: MakeOptimizer, first: torch.optim.Optimizer, pairs: Mapping[int, nn.Parameter]) -> MakeOptimizer:
    """Makes another replica's optimizer: as the first one's was made, or where that was handed in ready, like it."""

    def make_twin(model: nn.Module) -> torch.optim.Optimizer:
        own = {id(p) for p in model.parameters()}
        try:
            made = make(model)
        except ConfigError:
            # The first replica's was made the same way, so it is a ready one, of that replica's parameters.
            return rebuilt(first, pairs)
        is_own = all(id(p) in own for group in made.param_groups for p in group["params"])
        return made if is_own else rebuilt(first, pairs)

    return make_twin


def rebuilt(first: torch.optim.Optimizer, pairs: Mapping[int, nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of the same class, groups and state over the parameters that `pairs` gives for its own, by id.

    Raises ConfigError where that cannot be made.
    """
    kind = type(first)
    fix = "hand in a function that makes it, optimizer=lambda model: ..., which each replica calls with its own model"
    if any(id(p) not in pairs for group in first.param_groups for p in group["params"]):
        raise ConfigError(
            f"the {kind.__name__} trains a parameter that is not the model's, of which the other replicas have no copy",
            "make that parameter part of the model",
        )
    groups = [
        {**{key: plain(value) for key, value in group.items()}, "params": [pairs[id(p)] for p in group["params"]]}
        for group in first.param_groups
    ]
    known = inspect.signature(kind).parameters
    try:
        twin = kind(groups, **{key: plain(value) for key, value in first.defaults.items() if key in known})
        if first.state:
            twin.load_state_dict(copy.deepcopy(first.state_dict()))  # on one device torch would keep the same tensors
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the {kind.__name__} cannot be made again for another replica: {error}", fix) from error
    return twin


def plain(value: Any) -> Any:
    """A number in place of a tensor of one element, which would be on the first replica's device."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def follow(first: Replica, other: Replica) -> None:
    """Take over the options of the first replica's optimizers: what its scheduler, or a callback, has set there."""
    for name, part in first.parts.items():
        groups = other.parts[name].update.optimizer.param_groups
        for own, lead in zip(groups, part.update.optimizer.param_groups, strict=True):
            own.update({k: v for k, v in lead.items() if k != "params" and not isinstance(v, Tensor)})


@torch.no_grad()
def send(sources: Sequence[Tensor], targets: Sequence[Sequence[Tensor]], devices: Sequence[torch.device]) -> None:
    """Copy the first replica's tensors into the other replicas'; devices: of all, the first one's first."""
    if not sources:
        return
    if devices[0].type == "cpu":
        for each in targets:
            torch._foreach_copy_(list(each), list(sources))
        return
    start = 0
    while start < len(sources):
        end, num_bytes = start, 0
        while end < len(sources) and (end == start or num_bytes + sources[end].nbytes <= SENT_BYTES):
            num_bytes += sources[end].nbytes
            end += 1
        _, *received = comm.broadcast_coalesced([t.detach() for t in sources[start:end]], devices)
        for each, found in zip(targets, received, strict=True):
            torch._foreach_copy_(list(each[start:end]), list(found))
        start = end


def named(error: BaseException, replica: Replica) -> BaseException:
    """The error with its replica's name; of the same kind where that can be made of a text."""
    if isinstance(error, DrumlineError):
        again = copy.copy(error)
        again.problem = f"{replica}: {error.problem}"
        return again
    if not isinstance(error, Exception):
        return error
    kind = type(error)
    if kind.__module__ in ("builtins", "torch"):
        try:
            return kind(f"{replica}: {error}")
        except TypeError:  # such as UnicodeDecodeError, which is made of more
            pass
    return RuntimeError(f"{replica}: {kind.__name__}: {error}")
