"""What happens to the gradients of a unit just before fully_shard reduces them: looked at, and made whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from drumline.parallel.fsdp_shards import Peers
from drumline.parallel.update import mixed_norm


class Gradients:
    """Sees every reduction of one sharded model.

    fully_shard reduces the gradients that a unit has, so that ranks which use different parameters would send
    different amounts and hang, or mix one parameter's gradient into another's (pytorch #43259 for DDP). Here a unit
    that was gathered reduces all that it trains, with zeros where this rank has no gradient. torch 2.13 can do that
    itself, 2.11 cannot, and neither tells which parameters went unused: hence the hold on `post_backward`, which is
    not public, and is the same in both.
    """

    def __init__(self, root: nn.Module) -> None:
        self._groups = [group for module in root.modules() for group in groups_of(module)]
        self.used: set[nn.Parameter] = set()
        """Sharded parameters that this rank's passes of the window have given gradients."""
        self.squares: list[Tensor] | None = None
        """Of this rank's own gradients, a reduction each; None: nobody wants to know them."""
        for group in self._groups:
            self._hold(group)

    def _hold(self, group: Any) -> None:
        post_backward = group.post_backward

        def completed(*unused: Any) -> None:
            if group.is_unsharded:
                self._complete(group)
            post_backward()

        group.post_backward = completed

    def _complete(self, group: Any) -> None:
        found: list[Tensor] = []
        for each in group.fsdp_params:
            if each.unsharded_param.grad is not None:
                found.append(each.unsharded_param.grad)
                self.used.add(each.sharded_param)
        if self.squares is not None and found:
            norms = torch.stack(torch._foreach_norm(found, 2, dtype=torch.promote_types(found[0].dtype, torch.float32)))
            self.squares.append(norms.double().square().sum())
        trained = [each for each in group.fsdp_params if each.unsharded_param.requires_grad]
        if not group.reduce_grads or (len(found) == len(trained) and not any(map(has_kept, trained))):
            return
        # A sum over earlier passes is of the type of the reduction; torch wants one type for all of them.
        keeps = any(map(has_kept, trained))
        for each in trained:
            p = each.unsharded_param
            if has_kept(each):
                continue
            if keeps:
                each.unsharded_accumulated_grad = (torch.zeros_like(p) if p.grad is None else p.grad).to(
                    each.reduce_dtype
                )
                p.grad = None
            elif p.grad is None:
                p.grad = torch.zeros_like(p)

    def close(self) -> None:
        """Let go of the process groups, which a model would hold for as long as it lives."""
        for group in self._groups:
            vars(group).pop("post_backward", None)
            group.mesh_info = group.post_forward_mesh_info = None
            # What a pass that failed had under way: gloo's work holds the sockets of its group.
            group._all_gather_result = None
            group.comm_ctx.all_gather_state = None
            for each in group.fsdp_params:
                each.mesh_info = each.post_forward_mesh_info = None
        self._groups = []


def has_kept(fsdp_param: Any) -> bool:
    """Whether passes that were not reduced have left a sum."""
    return fsdp_param.unsharded_accumulated_grad is not None


def groups_of(module: nn.Module) -> list[Any]:
    """What fully_shard made of one module: its group of parameters, a list in torch 2.13 and one or none in 2.11."""
    if not isinstance(module, FSDPModule):
        return []
    state: Any = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def sum_gradients(root: nn.Module) -> None:
    """Sums instead of means: losses are scaled by the whole window's count already, so that a sum is the gradient."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class ShardNorm:
    """The norm of sharded gradients over all ranks, equal on all of them to the bit."""

    def __init__(self, peers: Peers, num_copies: int, device: torch.device) -> None:
        """peers: all ranks; num_copies: sets of shards among them, as hybrid sharding has several."""
        self._peers = peers
        self._num_copies = num_copies
        self._device = device

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        """What `update.total_norm` gives for whole gradients; those without dimensions are whole on every rank."""
        shares = [(g, self._num_copies if g.dim() else self._peers.size) for g in gradients if g.numel()]
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        for copies in {copies for _, copies in shares}:
            norm = mixed_norm([g for g, held in shares if held == copies])
            square += norm.double().square().to(self._device) / copies
        dist.all_reduce(square, group=self._peers.group)
        if not gradients:
            return square.sqrt().float()
        dtype = torch.promote_types(gradients[0].dtype, torch.float32)
        return square.sqrt().to(gradients[0].device, dtype)
