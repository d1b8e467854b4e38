"""Activation checkpointing (Chen et al. 2016) of the blocks that a model repeats, in place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from drumline.config.compute import CheckpointingConfig
from drumline.parallel.compile import repeated_blocks

logger = logging.getLogger("drumline")

KEPT = (
    "aten.mm",
    "aten.addmm",
    "aten.bmm",
    "aten.baddbmm",
    "aten.convolution",
    "aten._scaled_mm",
    "aten._int_mm",
    "aten._cslt_sparse_mm",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "torch_attn._varlen_attn",  # known once it was imported
    "aten.max",  # of a whole tensor, which float8 scales by: one number, for a pass over all of it
)
"""Operations whose outputs `selective` keeps: matrix products and attention."""


def apply_checkpointing(model: nn.Module, settings: CheckpointingConfig) -> None:
    """Let the model's repeated blocks compute their activations again in the backward pass, as the settings say.

    The blocks' forward is replaced on the instance, so that modules, their names and those of their parameters stay;
    what an earlier call did is undone first. Outside of training, with gradients off, blocks run as they are. `budget`
    is the compiler's and changes nothing here. Raises ConfigError where no block repeats.
    """
    for module in model.modules():
        if is_checkpointed(module):
            del module.forward
    if settings.kind not in ("selective", "full"):
        return
    blocks = repeated_blocks(model, f"train.checkpointing.kind is {settings.kind}")
    whole = settings.kind == "full" or settings.every is not None
    run = twin(cast(FunctionType, run_again if whole else run_again_selectively))
    for block in blocks[:: settings.every or 1]:
        block.forward = partial(run, block.forward)
    kept_operations.cache_clear()  # torchao's may have been loaded since
    turn_cache_off(model)


def is_checkpointed(module: nn.Module) -> bool:
    """Whether the module's forward was replaced here."""
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and getattr(forward.func, "__code__", None) in CODES


def twin(function: FunctionType) -> FunctionType:
    """The same function with a code object of its own.

    torch.compile keeps its forms with the code, 8 at most; models, and replicas on several GPUs, must not share them.
    """
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def run_again(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call forward, and keep its inputs only where a gradient is wanted; random streams are put back the second time.

    Never re-entrant: that form hides from DDP which parameters a pass used.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def run_again_selectively(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The same, but what products and attention give is kept."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=SELECTIVE, **kwargs)


@cache
def kept_operations() -> frozenset[Any]:
    """Those of KEPT that this torch has, and torchao's own where they are loaded."""
    found = set()
    for name in (*KEPT, "torchao.scaled_int8_mm"):
        namespace, _, operation = name.partition(".")
        packet = getattr(getattr(torch.ops, namespace), operation, None)
        if packet is not None:
            found.add(packet.default)
    return frozenset(found)


def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """What selective checkpointing does with the output of one operation."""
    keep = operation in kept_operations()
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


CODES = (run_again.__code__, run_again_selectively.__code__)
"""What a replaced forward runs; code objects are equal where they do the same."""

SELECTIVE = partial(create_selective_checkpoint_contexts, policy)
"""torch.compile takes a partial of a function of two contexts here, and nothing else."""


def turn_cache_off(model: nn.Module) -> None:
    """Keep a transformers model from filling its cache of keys and values, which a second forward pass would double."""
    config = getattr(model, "config", None)
    if getattr(config, "use_cache", False) is True:
        logger.warning(
            "train.checkpointing computes blocks twice: config.use_cache of the %s is set to false; set it to true "
            "again before you generate text",
            type(model).__name__,
        )
        config.use_cache = False  # type: ignore[union-attr]
