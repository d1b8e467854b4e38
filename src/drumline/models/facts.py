"""Counts what a model takes of memory, without running it on a device: parameters by look, activations by a dry pass.

The dry pass runs on fake tensors, which have shapes and types and no memory (torch's meta device with autocast).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from drumline.data.seeds import streams_kept
from drumline.parallel.compile import find_blocks
from drumline.parallel.objective import Objective, to_device
from drumline.parallel.precision import Precision
from drumline.parallel.strategy import Batch, Task
from drumline.plan.memory import HALF, ModelFacts

CPU = torch.device("cpu")
FEW, MORE = 2, 4
"""Samples of the two passes that are compared; BatchNorm cannot train on one."""


def count_parameters(model: nn.Module, frozen: Collection[int] = ()) -> ModelFacts:
    """Numbers and bytes of a model on any device, meta too; frozen: ids of parameters that a run will freeze.

    A parameter that has several names counts once.
    """
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad and id(p) not in frozen]
    return ModelFacts(
        num_parameters=sum(p.numel() for p in parameters),
        num_trainable=sum(p.numel() for p in trained),
        parameter_bytes=sum(p.nbytes for p in parameters),
        buffer_bytes=sum(buffer.nbytes for buffer in model.buffers()),
        block_bytes=_largest_unit(model, parameters),
    )


def _largest_unit(model: nn.Module, parameters: list[nn.Parameter]) -> int:
    blocks = find_blocks(model)
    inside = {id(p) for block in blocks for p in block.parameters()}
    rest = sum(p.nbytes for p in parameters if id(p) not in inside)
    return max([rest, *(sum(p.nbytes for p in block.parameters()) for block in blocks)])


class Kept(NamedTuple):
    """Bytes that one forward pass keeps for its backward pass, beyond parameters and buffers."""

    total: int
    largest: int
    """Of the largest single tensor."""


class Case(NamedTuple):
    """What a dry pass runs."""

    task: Task
    few: Batch
    """Of FEW samples."""
    more: Batch
    """Of MORE, else like it."""
    precision: str
    """fp32, tf32, bf16 or fp16."""
    change: Callable[[nn.Module], None] | None = None
    """Applied to the copy of the model first, as the run would apply it: activation checkpointing."""


def with_activations(facts: ModelFacts, model: nn.Module, case: Case, frozen: Collection[int] = ()) -> ModelFacts:
    """Add the bytes that a sample's forward pass keeps, measured by two dry passes of FEW and MORE like samples.

    The model, the random streams and every device are left alone. What cannot run without values (a loss that reads
    one, a kernel of its own) gives None, with the reason as the note.
    """
    try:
        few, more = (kept_by_pass(model, case, batch, frozen) for batch in (case.few, case.more))
    except Exception as error:  # whatever the user's model and loss do, the run can begin without this number
        return replace(facts, note=reason(error))
    per_sample = max(0, more.total - few.total) / (MORE - FEW)
    fixed = max(0, few.total - FEW * per_sample)
    return replace(
        facts,
        activation_bytes=round(per_sample),
        transient_bytes=round(more.largest / MORE * (1.5 if case.precision in HALF else 1.0)),
        fixed_bytes=round(fixed),
        note="",
    )


def kept_by_pass(model: nn.Module, case: Case, batch: Batch, frozen: Collection[int] = ()) -> Kept:
    """What one forward pass of this batch keeps, by storage; raises what model and task raise."""
    with streams_kept(), FakeTensorMode(allow_non_fake_inputs=True) as mode, ExitStack() as stack:
        fake = faked(model, mode, frozen)
        if case.change is not None:
            case.change(fake)
        objective = Objective(fake, case.task)
        counted = _Counter([*fake.parameters(), *fake.buffers()])
        stack.enter_context(FusedAttention())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(counted.keep, lambda kept: kept))
        stack.enter_context(Precision(case.precision, CPU).autocast())
        objective(to_device(batch, CPU))
        return Kept(sum(counted.sizes.values()), max(counted.sizes.values(), default=0))


def faked(model: nn.Module, mode: FakeTensorMode, frozen: Collection[int] = ()) -> nn.Module:
    """A copy of the model in training mode, whose parameters and buffers take no memory; inside the mode.

    Those that have several names stay one; what else the model holds is copied as copy.deepcopy does.
    """
    memo: dict[int, Any] = {}
    for p in model.parameters():
        wanted = p.requires_grad and id(p) not in frozen
        memo[id(p)] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=wanted)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty(buffer.shape, dtype=buffer.dtype)
    return copy.deepcopy(model, memo).train()


class _Counter:
    """Sizes of the storages that a forward pass saves, each once."""

    def __init__(self, own: list[Tensor]) -> None:
        self._own = {tensor.untyped_storage()._cdata for tensor in own}
        self.sizes: dict[int, int] = {}
        self._alive: list[Tensor] = []

    def keep(self, tensor: Tensor) -> Tensor:
        """Take in one saved tensor; it lives on, so that no other gets its storage's address."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._own:
            self.sizes[storage._cdata] = storage.nbytes()
            self._alive.append(tensor)
        return tensor


class FusedAttention(TorchFunctionMode):
    """Inside, attention keeps what torch's fused kernels keep on a GPU, whatever runs here.

    That is queries, keys, values, outputs and a float32 for each row and head, and no matrix of tokens by tokens
    (FlashAttention, Dao et al. 2022).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Put the stand-in in the place of scaled_dot_product_attention."""
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = (*args, *(kwargs or {}).values())[:3]
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
        return _Attended.apply(query.to(dtype), key.to(dtype), value.to(dtype))  # type: ignore[no-untyped-call]


class _Attended(torch.autograd.Function):
    """Shapes and saved tensors of fused attention; it has no values and no backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[..., T, D] queries, [..., S, D] keys and [..., S, E] values to [..., T, E]."""
        # Kernels write tokens before heads, unless the queries lie otherwise without gaps: then as these do.
        like = (
            query if query.shape[-1] == value.shape[-1] else query[..., :1].expand(*query.shape[:-1], value.shape[-1])
        )
        output = (
            torch.empty_like(like.transpose(-2, -3)).transpose(-2, -3) if query.dim() > 3 else torch.empty_like(like)
        )
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return output


def reason(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
