"""AdamW whose moments are kept in 8 bits by blocks (Dettmers et al. 2022), in bitsandbytes' types, by its kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from drumline.engine.half_states import MOMENTS, parts_of
from drumline.errors import ConfigError
from drumline.models.quantised import bitsandbytes

BLOCKS = (256, 128, 64)
"""Values that share one scale: the largest that divides a row counts. bitsandbytes' optimizers take 256."""

SCALE = "_absmax"
"""End of a name: the largest value of each block, which its codes are relative to."""


class Int8AdamW(torch.optim.AdamW):
    """torch's AdamW with moments in 8 bits, a quarter of float32's bytes, unpacked for some parameters at a time.

    Torch's own kernel updates the unpacked moments, so that arithmetic, `found_inf`, `grad_scale` and rates on the
    device are AdamW's, and an update that is skipped changes no bit; the host waits for nothing. Of the second moment
    the root is kept, which has the first one's range, and never as zero where its block is not: what is too small for
    8 bits is then moved too little, not far too much. Blocks do not cross rows (the first dimension), so that a shard
    has the blocks of the whole; moments of parameters whose rows no block divides, such as biases and norms, stay as
    they are. state_dict() has the codes; load_state_dict() takes AdamW's too. Raises MissingExtra without
    bitsandbytes, ConfigError for `paged` without a GPU.
    """

    elementwise = True
    """A shard of whole rows is updated as in the whole; see fsdp."""
    row_states = frozenset(name + SCALE for name in MOMENTS)
    """State that has the parameter's first dimension and others of its own."""

    def __init__(self, params: Any, *, fused: bool, paged: bool = False, **settings: Any) -> None:
        """paged: keep codes in memory that moves to the host when the GPU's is short."""
        super().__init__(params, fused=fused, **settings)
        functional = bitsandbytes().functional
        self._signed: Tensor = functional.create_dynamic_map(signed=True)
        self._unsigned: Tensor = functional.create_dynamic_map(signed=False)
        self._paged = paged
        self._step_supports_amp_scaling = fused
        if paged and not torch.cuda.is_available():
            raise ConfigError(
                "train.optimizer.paged moves moments between a GPU and the host, and there is no GPU", "leave it out"
            )

    def allocate(self) -> None:
        """Make the state of all parameters, before the first update."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.requires_grad:
                    self._state_of(p)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for part in parts_of([p for p in group["params"] if p.grad is not None]):
                    self._update(part, group)
        return loss

    def _update(self, parameters: list[Tensor], group: Mapping[str, Any]) -> None:
        states = [self._state_of(p) for p in parameters]
        means, squares = ([self._widened(p, name) for p in parameters] for name in MOMENTS)
        found_inf = getattr(self, "found_inf", None)
        adamw(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            means,
            squares,
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )
        for p, mean, square in zip(parameters, means, squares, strict=True):
            self._keep(p, "exp_avg", mean, found_inf)
            self._keep(p, "exp_avg_sq", square, found_inf)

    def _state_of(self, p: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self.state[p]
        if not state:
            fused = bool(self.defaults["fused"])
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device if fused else "cpu")
            for name in MOMENTS:
                self._make(p, state, name)
        return state

    def _make(self, p: Tensor, state: dict[str, Any], name: str) -> None:
        """Room for one moment, which is zero."""
        block = block_of(p)
        if block is None:
            state[name] = torch.zeros_like(p, memory_format=torch.contiguous_format)
            return
        state[name] = paged_codes(p) if self._paged else torch.zeros(p.shape, dtype=torch.uint8, device=p.device)
        blocks = (p.shape[0], row_size(p) // block)
        state[name + SCALE] = torch.zeros(blocks, dtype=torch.float32, device=p.device)

    def _code(self, name: str, device: torch.device) -> Tensor:
        """The values that codes of this moment stand for, on the device."""
        key = "_signed" if name == "exp_avg" else "_unsigned"
        if getattr(self, key).device != device:
            setattr(self, key, getattr(self, key).to(device))
        code: Tensor = getattr(self, key)
        return code

    def _widened(self, p: Tensor, name: str) -> Tensor:
        """A moment in the parameter's type: itself where it is not packed."""
        state, block = self.state[p], block_of(p)
        kept: Tensor = state[name]
        if block is None or not kept.numel():
            return kept if block is None else torch.zeros_like(p)
        unpack = torch.ops.bitsandbytes.dequantize_blockwise.default
        scale = state[name + SCALE].view(-1)
        wide: Tensor = unpack(kept, scale, self._code(name, p.device), block, torch.float32).to(p.dtype)
        return wide if name == "exp_avg" else wide.square_()

    def _keep(self, p: Tensor, name: str, moment: Tensor, found_inf: Tensor | None) -> None:
        """Pack a moment, which is overwritten here, into its place; where there was no update, leave that alone."""
        state, block = self.state[p], block_of(p)
        if block is None or not moment.numel():
            return
        if name == "exp_avg_sq":
            moment = moment.sqrt_()
        pack = torch.ops.bitsandbytes.quantize_blockwise.default
        codes, scale = pack(moment.float(), self._code(name, p.device), block)
        if name == "exp_avg_sq":
            codes.clamp_(min=1)
        for key, value in ((name, codes), (name + SCALE, scale)):
            old: Tensor = state[key]
            value = value.view(old.shape)
            old.copy_(value if found_inf is None else torch.where(found_inf > 0, old, value))

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state of one of this class, or AdamW's."""
        saved = state_dict["state"]
        super().load_state_dict(dict(state_dict))  # torch gives all of it the parameters' type, and codes fit into it
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, p in enumerate(parameters):
            if number not in saved or block_of(p) is None:
                continue
            state = self.state[p]
            for name in MOMENTS:
                given, scale = state[name], state.get(name + SCALE)
                self._make(p, state, name)
                if saved[number][name].dtype == torch.uint8:
                    state[name].copy_(given)
                    state[name + SCALE].copy_(scale)
                else:
                    self._keep(p, name, given.clone(), None)


def row_size(p: Tensor) -> int:
    """Values of one row, along the first dimension; 1 of what has fewer than two dimensions."""
    return math.prod(p.shape[1:])


def block_of(p: Tensor) -> int | None:
    """How many values of a row share a scale; None where its moments are not packed."""
    return next((block for block in BLOCKS if p.dim() > 1 and row_size(p) % block == 0), None)


class Managed:
    """CUDA's managed memory, which moves between a GPU and the host, as torch takes memory of others."""

    def __init__(self, host: Tensor) -> None:
        """host: the same memory as bitsandbytes gives it, which lives as long as this."""
        self._host = host
        shape, place = tuple(host.shape), (host.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": place, "version": 3}


def paged_codes(p: Tensor) -> Tensor:
    """Zeros in managed memory, of the parameter's shape, as a tensor on its device."""
    host = bitsandbytes().functional.get_paged(*p.shape, dtype=torch.uint8, device=p.device)
    return torch.as_tensor(Managed(host), device=p.device).zero_()
