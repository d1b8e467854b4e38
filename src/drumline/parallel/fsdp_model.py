"""A model whose parameters are sharded: made so, and the few things that are done to all of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.optim import Optimizer

from drumline.config.parallel import FsdpParallel
from drumline.errors import ConfigError
from drumline.parallel.fsdp_gradients import groups_of, sum_gradients
from drumline.parallel.fsdp_shards import Layout, Peers, Shard, local_shard
from drumline.parallel.fsdp_units import Root, find_units, is_sharded_alone, own_modules, policy_of
from drumline.parallel.groups import Groups
from drumline.parallel.keys import bare_name
from drumline.parallel.materialise import allocate, check_layouts, layout_of, materialise, on_meta, seeds_of
from drumline.parallel.ready import ReadyOptimizer, rebind
from drumline.parallel.strategy import MakeOptimizer

logger = logging.getLogger("drumline")

ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
)
"""torch's optimizers that treat every element of a parameter alike, so that a part of it is updated as in the whole. A
class of another origin says so by an attribute `elementwise`; all others get DTensors."""

MOST_WHOLE = 0.5
"""Share of a GPU's memory up to which gathered weights are kept through the backward pass, together with whole
gradients and this rank's shards: the other half is left to activations. A rule of thumb."""


class ShardedModel:
    """Shards a model in place, with rank 0's values, and knows the shards."""

    def __init__(self, model: nn.Module, groups: Groups, settings: FsdpParallel, precision: str) -> None:
        """All ranks call it. Raises ConfigError for a model or settings that cannot be sharded."""
        assert groups.train is not None
        self.model = model
        self.root = Root(model)
        self.peers = Peers(groups.train)
        self._device = groups.device
        self._settings = settings
        self.home = torch.device("cpu") if settings.offload else groups.device
        """Where shards and optimizer state are."""
        size = settings.shard_size or groups.world.size
        if groups.world.size % size:
            raise ConfigError(
                f"parallel.shard_size {size} does not divide the {groups.world.size} ranks",
                "choose a divisor, such as the number of GPUs of a machine",
            )
        self.num_copies = groups.world.size // size
        mesh, block = self._make_mesh(groups, groups.train, size)
        self._mesh = mesh
        self._block = Peers(block)
        self.layout = Layout(self._block, groups.device)
        self.keeps_whole, why = self._keeps_whole(size, precision)
        before = dict(model.named_parameters())
        meta, seed = self._agree(groups)
        self._shard(mesh, precision, set(meta), seed)
        after = dict(model.named_parameters())
        self.replaced: dict[nn.Parameter, nn.Parameter] = {
            old: after[name] for name, old in before.items() if after[name] is not old
        }
        """The model's parameter by the one that it had before."""
        self.shards: dict[str, Shard] = {}
        """By name, tied ones under their first; without parameters of no dimensions, which every rank has."""
        for name, p in after.items():
            if (shard := local_shard(p)) is not None:
                self.shards[name] = shard
        self._whole = [p for name, p in after.items() if name not in self.shards]
        self._as_dtensor: set[nn.Parameter] = set()
        self._reduces = True
        if groups.world.rank == 0:
            logger.info("fsdp: %d units and the root; %s", self.num_units, why)

    def _make_mesh(self, groups: Groups, train: dist.ProcessGroup, size: int) -> tuple[DeviceMesh, dist.ProcessGroup]:
        """The mesh that fully_shard works on, and the group of the ranks that hold one set of shards."""
        kind = self._device.type
        if size == groups.world.size:
            return DeviceMesh.from_group(train, kind, mesh_dim_names=("shard",)), train
        same_place, block = groups.split(size)
        ranks = torch.arange(groups.world.size).view(-1, size)
        mesh = DeviceMesh.from_group([same_place, block], kind, ranks, mesh_dim_names=("replicate", "shard"))
        return mesh, block

    def _keeps_whole(self, size: int, precision: str) -> tuple[bool, str]:
        """Whether gathered weights stay until the backward pass, and why."""
        asked = self._settings.reshard_after_forward
        if asked != "auto":
            return asked == "never", f"reshard_after_forward is {asked}"
        if self._device.type == "cpu":
            return True, "on the CPU gathered weights stay until the backward pass"
        numel = sum(p.numel() for p in self.model.parameters())
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        gathered = numel * (2 if precision in ("bf16", "fp16") else 4)
        # Float32: whole gradients of a window; of each shard the weight, its gradient, and two states of AdamW.
        needed = gathered + 4 * trained + (0 if self._settings.offload else (4 * numel + 12 * trained) // size)
        _, total = torch.cuda.mem_get_info(self._device)
        share = needed / total
        what = f"whole weights, whole gradients and shards are {needed / 2**30:.1f} GiB, {share:.0%} of the GPU"
        if share <= MOST_WHOLE:
            return True, f"{what}: gathered weights stay until the backward pass"
        return False, f"{what}: each unit's weights are gathered anew for the backward pass"

    def _agree(self, groups: Groups) -> tuple[list[str], int]:
        """Names of the parameters that nobody has values of, and the seed for them, rank 0's."""
        meta = on_meta(self.model)
        answers = groups.side.exchange("sharding", [meta, torch.initial_seed(), layout_of(self.model)])
        nowhere, seed, layout = answers[0]
        if any(others != nowhere for others, *_ in answers):
            check_layouts([other for *_, other in answers], layout)
        for rank, (others, *_) in enumerate(answers):
            if missing := set(nowhere) - set(others):
                raise ConfigError(
                    f"{min(missing)} is on the meta device on rank 0, and has values on rank {rank}",
                    "build the model on rank 0, or on the meta device everywhere",
                )
        return nowhere, seed

    def _shard(self, mesh: DeviceMesh, precision: str, nowhere: set[str], seed: int) -> None:
        """Unit by unit, so that the device never holds more than one of them whole."""
        model = self.model
        units = find_units(model, self._settings.min_params)
        self.num_units = len(units)
        seeds, made = seeds_of(model, seed), dict[int, Tensor]()
        # Rank 0's values, where it has them; a parameter without values on rank 0 is made on all ranks alike.
        values = {
            name: p.detach() if self.peers.rank == 0 else None
            for name, p in model.named_parameters()
            if name not in nowhere
        }
        scalars = {p for p in model.parameters() if not p.dim()}
        policy = CPUOffloadPolicy(pin_memory=self._device.type == "cuda") if self._settings.offload else OffloadPolicy()
        for unit in (*units, self.root):
            modules = list(own_modules(unit, set(units)))
            if nowhere:
                materialise(unit, self._device, seeds, made)
            mixed = policy_of([module for module in modules if module is not self.root], precision, self._settings)
            old = [p for p in unit.parameters() if not hasattr(p, "_local_tensor") and p not in scalars]
            for p in old:
                if not p.is_contiguous():
                    p.data = p.data.contiguous()  # fully_shard takes no other (channels_last)
            fully_shard(
                unit,
                mesh=mesh,
                # What is called last is needed again at once.
                reshard_after_forward=not (self.keeps_whole or unit is self.root or is_sharded_alone(unit)),
                mp_policy=mixed,
                offload_policy=policy,
                ignored_params=scalars,
            )
            for p in old:  # whoever still holds one, as an optimizer does, shall not hold its memory
                p.data = p.data.new_empty(0)
        self._allocate(made)
        sum_gradients(self.root)
        self._fill(values)
        self.root._get_fsdp_state()._lazy_init()  # type: ignore[operator]  # while all that trains wants a gradient

    def _allocate(self, made: dict[int, Tensor]) -> None:
        """Memory for what is on the meta device on this rank only; its values are on their way."""
        allocate(self.model.modules(), self.home, made)
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            if not hasattr(tensor, "_local_tensor") and tensor.device != self._device:
                tensor.data = tensor.data.to(self._device)
        for module in self.root.modules():
            for group in groups_of(module):
                for fsdp_param in group.fsdp_params:
                    fsdp_param.reset_sharded_param()

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor | None]) -> None:
        """Give every rank its part of rank 0's values; one parameter at a time is whole on the devices."""
        for name, p in self.model.named_parameters():
            if name not in values:
                continue
            whole = torch.empty(p.shape, dtype=p.dtype, device=self._device)
            if (value := values[name]) is not None:
                whole.copy_(value)
            dist.broadcast(whole, 0, group=self.peers.group)
            part = getattr(p, "_local_tensor", None)
            if part is None:
                p.copy_(whole)
            else:
                part.copy_(self.layout.cut(whole))

    def all_names(self) -> dict[str, Shard]:
        """Shards by every name that they have in the bare model."""
        by_parameter = {shard.sharded: shard for shard in self.shards.values()}
        parameters = self.model.named_parameters(remove_duplicate=False)
        return {bare_name(self.model, name): by_parameter[p] for name, p in parameters if p in by_parameter}

    def optimizer(self, make: MakeOptimizer) -> Optimizer:
        """Make it over what stands in the model now, even if it was made before that was sharded."""
        if isinstance(make, ReadyOptimizer):
            rebind(make.given, self.replaced)
        optimizer = make(self.model)
        rebind(optimizer, self.replaced)
        for p, kept in optimizer.state.items():
            for key, value in kept.items():
                if isinstance(value, Tensor) and value.dim() and value.shape == p.shape:
                    kept[key] = self.layout.cut(value).to(self.home, copy=True)
        return optimizer

    def takes_parts(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer does to a part of a parameter what it would do to that part of the whole."""
        return type(optimizer) in ELEMENTWISE or bool(getattr(type(optimizer), "elementwise", False))

    def locals_for(self, optimizer: Optimizer) -> dict[nn.Parameter, nn.Parameter]:
        """Its part on this rank by parameter, where the optimizer works on parts; else nothing."""
        shards = {shard.sharded: shard.local for shard in self.shards.values()}
        if self.takes_parts(optimizer):
            return shards
        self._as_dtensor.update(p for group in optimizer.param_groups for p in group["params"] if p in shards)
        return {}

    def synchronise(self, *, last: bool) -> None:
        """Before a pass: whether it is the window's last. Only that one reduces, where gathered weights are kept."""
        if self.keeps_whole and last != self._reduces:  # each is a walk over all modules
            self._reduces = last
            root: FSDPModule = self.root  # type: ignore[assignment]
            root.set_requires_gradient_sync(last)
            root.set_reshard_after_backward(last)

    def reduce_whole(self) -> list[nn.Parameter]:
        """Sum the gradients of parameters without dimensions over all ranks; returns those that this rank used."""
        wanted = [p for p in self._whole if p.requires_grad]
        used = [p for p in wanted if p.grad is not None]
        for p in wanted:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, group=self.peers.group)
        return used

    def hand_over(self) -> None:
        """Move reduced gradients from the model's parameters to the tensors that optimizers work on."""
        for sharded, local in self.shards.values():
            if sharded not in self._as_dtensor:
                gradient, sharded.grad = sharded.grad, None
                local.grad = None if gradient is None else gradient._local_tensor  # type: ignore[attr-defined]

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        """The model's parameters with their gradients, after these were handed over."""
        found = [
            (sharded, sharded.grad if local.grad is None else local.grad) for sharded, local in self.shards.values()
        ]
        return [(p, gradient) for p, gradient in found if gradient is not None]

    def reshard(self) -> None:
        """Give back what is gathered."""
        for module in self.root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def close(self) -> None:
        """Let go of the model and of all groups."""
        self.root.leave()
        self.peers.close()
        self._block.close()
        # Every DTensor holds the mesh, and the mesh in torch 2.13 its groups.
        getattr(self._mesh, "_pg_registry", {}).clear()
