"""A module's replicas on other devices, which persist: shells of it over copies of its parameters and buffers."""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

from drumline.errors import ConfigError

logger = logging.getLogger("drumline")

MISSING = object()
"""Stands for an attribute that a module does not have."""

BUCKET_BYTES = 25 * 2**20
"""Gradients go to the first replica as soon as so many are there, while the rest is computed (DDP's bucket size)."""

COMPILED = "_compiled_call_impl"
"""Where nn.Module.compile keeps its work."""


class Shared(torch.autograd.Function):
    """Parameters of the first replica -> their copies on another device, without copying.

    Its backward pass gives the parameters the copies' gradients, so that autograd itself adds the replicas' up: hooks,
    `torch.autograd.grad`, accumulation and second derivatives see one sum, as on one device.
    """

    @staticmethod
    def forward(ctx: Any, copies: Sequence[Tensor], *parameters: Tensor) -> tuple[Tensor, ...]:
        """Aliases of the copies; they share their version counters, so that autograd sees a refresh in between."""
        ctx.set_materialize_grads(False)
        ctx.devices = [parameter.device for parameter in parameters]
        return tuple(copied.detach() for copied in copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """The gradients, on the parameters' devices."""
        pairs = zip(gradients, ctx.devices, strict=True)
        return None, *(None if given is None else given.to(device, non_blocking=True) for given, device in pairs)


class Watch:
    """Notices what may have changed parameters without a trace in their versions.

    Fused optimizers leave versions as they are (seen with torch 2.11 to 2.13), and so does whatever writes to `.data`.
    So every step of a torch optimizer counts as a change; until one is seen, so does every pass with gradients.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.passes = 0
        self.asked = 0
        seen = weakref.ref(self)

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            watch = seen()
            if watch is not None:
                watch.steps += 1

        weakref.finalize(self, register_optimizer_step_post_hook(stepped).remove)

    def mark(self) -> tuple[int, int, int]:
        """Another one than before, where parameters may have changed since."""
        return self.asked, self.steps, 0 if self.steps else self.passes


class First(NamedTuple):
    """The first replica, as it is before a pass."""

    modules: list[nn.Module]
    tensors: list[Tensor]
    """Parameters and buffers, tied ones once."""
    stamps: list[tuple[Any, ...]]
    mark: tuple[int, int, int]


class Copy:
    """One further replica."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._modules: list[nn.Module] = []
        self._shells: list[nn.Module] = []
        self._own: list[dict[str, Any]] = []
        """What each shell has of its own; all else is looked up in the module anew for each pass."""
        self._sources: list[Tensor] = []
        self._stamps: list[tuple[Any, ...]] = []
        """Of the sources, when they were copied."""
        self._copied: list[Tensor] = []
        self._copied_stamps: list[tuple[Any, ...]] = []
        self._mark: tuple[int, int, int] | None = None

    def follow(self, first: First) -> nn.Module:
        """The replica, as the first one is now: parameters, buffers, modes, hooks and attributes."""
        if not _same(first.modules, self._modules):
            self._make_shells(first.modules)
        self._refresh(first)
        values = self._values()
        for module, shell, own in zip(self._modules, self._shells, self._own, strict=True):
            own["_parameters"] = _looked_up(module._parameters, values)
            own["_buffers"] = _looked_up(module._buffers, values)
            if isinstance(module, nn.RNNBase):  # has them in a list too
                own["_flat_weights"] = [own["_parameters"].get(name) for name in module._flat_weights_names]
            shell.__dict__ = {**module.__dict__, **own}
        return self._shells[0]

    def _make_shells(self, modules: list[nn.Module]) -> None:
        """By torch's own protocol for replicas, which modules with more to do override."""
        self._modules, self._own = list(modules), []
        self._shells = [module._replicate_for_data_parallel() for module in modules]
        by_module = {id(module): shell for module, shell in zip(modules, self._shells, strict=True)}
        for module, shell in zip(modules, self._shells, strict=True):
            given = module.__dict__
            own = {key: value for key, value in shell.__dict__.items() if given.get(key, MISSING) is not value}
            own["_modules"] = {
                name: None if child is None else by_module[id(child)] for name, child in module._modules.items()
            }
            if given.get(COMPILED) is not None:
                own[COMPILED] = None  # the first replica's own
            self._own.append(own)

    def _refresh(self, first: First) -> None:
        """Copy what has changed, on either side."""
        everything, self._mark = first.mark != self._mark, first.mark
        stamps, tensors = self._stamps, first.tensors
        if not _same(tensors, self._sources):
            old = {id(source): number for number, source in enumerate(self._sources)}
            numbers = [old.get(id(tensor)) for tensor in tensors]
            stamps = [() if number is None else self._stamps[number] for number in numbers]
            held = [
                tensor if number is None else self._copied[number]
                for tensor, number in zip(tensors, numbers, strict=True)
            ]
            self._sources, self._copied = list(tensors), held
            everything = True
        elif not everything and stamps == first.stamps and self._copied_stamps == list(map(_stamp, self._copied)):
            return
        self._copy(first, stamps, everything=everything)

    def _copy(self, first: First, stamps: Sequence[tuple[Any, ...]], *, everything: bool) -> None:
        into, outof = list[Tensor](), list[Tensor]()
        made = False
        # Not as inference tensors, which no later pass with gradients could use.
        with torch.inference_mode(False), torch.no_grad():
            for number, (tensor, stamp) in enumerate(zip(first.tensors, first.stamps, strict=True)):
                before, copied = stamps[number], self._copied[number]
                if before[2:] != stamp[2:]:
                    self._copied[number], made = tensor.detach().to(self._device, copy=True, non_blocking=True), True
                elif everything or before != stamp or self._copied_stamps[number] != _stamp(copied):
                    into.append(copied)
                    outof.append(tensor.detach())
            if into:
                torch._foreach_copy_(into, outof, non_blocking=True)
            if made:
                self._flatten()
        self._stamps = list(first.stamps)
        self._copied_stamps = list(map(_stamp, self._copied))

    def _flatten(self) -> None:
        """Let recurrent modules' copies lie in one piece of GPU memory: cuDNN would put them there for each pass."""
        values = self._by_source()
        for module, shell in zip(self._modules, self._shells, strict=True):
            if isinstance(module, nn.RNNBase) and isinstance(shell, nn.RNNBase):
                weights = _looked_up(module._parameters, values)
                shell._flat_weights = [weights.get(name) for name in module._flat_weights_names]
                shell.flatten_parameters()

    def _by_source(self) -> dict[int, Tensor]:
        return {id(source): copied for source, copied in zip(self._sources, self._copied, strict=True)}

    def _values(self) -> dict[int, Tensor]:
        """By id of a tensor of the first replica what stands for it here, tied to it where it wants a gradient."""
        values = self._by_source()
        if torch.is_grad_enabled():
            for bucket in _buckets([tensor for tensor in self._sources if tensor.requires_grad]):
                tied: Any = Shared.apply([values[id(tensor)] for tensor in bucket], *bucket)  # type: ignore[no-untyped-call]
                values.update((id(tensor), alias) for tensor, alias in zip(bucket, tied, strict=True))
        return values


class Copies:
    """All further replicas of a module."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._home = devices[0]
        self._copies = [Copy(device) for device in devices[1:]]
        self._watch = Watch()
        self._checked: list[nn.Module] = []

    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        """The module and count - 1 replicas, ready for a forward pass in the calling thread's grad mode."""
        mark = self._watch.mark()
        self._watch.passes += torch.is_grad_enabled()
        if count == 1:
            return [module]
        modules = list(module.modules())
        if modules != self._checked:
            check_module(module)
            self._checked = modules
        tensors = _distinct(modules)
        for tensor in tensors:
            if tensor.device != self._home:
                raise ConfigError(
                    f"the module has tensors on {tensor.device}, and its first replica is on {self._home}",
                    f"move it there: module.to({str(self._home)!r})",
                )
        first = First(modules, tensors, list(map(_stamp, tensors)), mark)
        return [module, *(copied.follow(first) for copied in self._copies[: count - 1])]

    def refresh(self) -> None:
        """Copy everything before the next pass."""
        self._watch.asked += 1


def check_module(module: nn.Module) -> None:
    """Raise ConfigError for what cannot have replicas in one process."""
    compiled = 0
    for name, child in module.named_modules():
        place = f"module {name}" if name else "the module"
        if isinstance(child, nn.SyncBatchNorm):
            raise ConfigError(
                f"{place} is SyncBatchNorm, which meets other processes, and replicas are threads of one",
                "use BatchNorm, or train with one process a GPU (parallel.kind=ddp, sync_batch_norm)",
            )
        if isinstance(child, torch.jit.ScriptModule):
            raise ConfigError(f"{place} is a ScriptModule, which cannot be replicated", "hand in the Python module")
        if "_orig_mod" in child._modules:
            raise ConfigError(
                f"{place} comes from torch.compile, bound to one device",
                "hand in the module that was compiled, or train with parallel.kind=data_parallel, which compiles",
            )
        if any(is_lazy(tensor) for tensor in _distinct([child])):
            raise ConfigError(f"{place} is lazy and has no shapes yet", "run the module on one batch first")
        compiled += child.__dict__.get(COMPILED) is not None
    if compiled:
        logger.warning("what is compiled of the module (%d of its modules) is so on the first replica only", compiled)


def _distinct(modules: Iterable[nn.Module]) -> list[Tensor]:
    """All parameters and buffers, tied ones once."""
    found: dict[int, Tensor] = {}
    for module in modules:
        for tensors in (module._parameters, module._buffers):
            found.update((id(tensor), tensor) for tensor in tensors.values() if tensor is not None)
    return list(found.values())


def _looked_up(names: dict[str, Any], values: dict[int, Tensor]) -> dict[str, Tensor | None]:
    return {name: None if tensor is None else values[id(tensor)] for name, tensor in names.items()}


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether both hold the same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _stamp(tensor: Tensor) -> tuple[Any, ...]:
    """Where its values are, how often they changed, and what they are; torch does not count for inference tensors."""
    version = object() if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.shape


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbours together, BUCKET_BYTES each."""
    buckets: list[list[Tensor]] = []
    room = 0
    for tensor in tensors:
        if not buckets or tensor.nbytes > room:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append(tensor)
        room -= tensor.nbytes
    return buckets
