"""How the model is computed, whatever the strategy: what is applied to it, in one fixed order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config.compute import CheckpointingConfig, Compile, LinearConfig
from drumline.config.schema import RunConfig
from drumline.parallel.checkpointing import apply_checkpointing
from drumline.parallel.compile import compile_blocks, find_blocks, with_memory_budget
from drumline.parallel.linear import convert_linear


@dataclass(frozen=True)
class Compute:
    """The settings of a run that change how its model is computed and not what it learns."""

    precision: str
    """fp32, tf32, bf16 or fp16."""
    compile: Compile = "none"
    """auto: blocks where the model has some; whoever measures them may undo it."""
    cuda_graphs: bool = False
    checkpointing: CheckpointingConfig = field(default_factory=CheckpointingConfig)
    linear: LinearConfig = field(default_factory=LinearConfig)

    @classmethod
    def of(cls, config: RunConfig, precision: str) -> Compute:
        """What the config says, at the precision that the plan has chosen."""
        train = config.train
        return cls(precision, train.compile, train.cuda_graphs, train.checkpointing, train.linear)

    def apply(self, model: nn.Module) -> None:
        """Change the model in place, after it is on its device and before a strategy shards or wraps it.

        Neither names of parameters nor references to modules and parameters change. With compile: whole the strategy
        calls `compile_objective` besides. Raises ConfigError for a model that has not what a setting asks for, and
        MissingExtra without torchao.
        """
        convert_linear(model, self.linear, compiled=self.compile != "none")
        apply_checkpointing(model, self.checkpointing)
        if self.compile == "blocks" or (self.compile == "auto" and find_blocks(model)):
            compile_blocks(model, **self.options())
        if self.cuda_graphs:
            own_gradients(model)

    def compile_objective(self, objective: nn.Module) -> None:
        """Compile model and loss in one graph with compile: whole, and say where each pass begins."""
        if self.compile == "whole":
            objective.compile(**self.options())
        if not self.cuda_graphs:
            return
        compiled = objective._compiled_call_impl
        if compiled is None:
            objective.register_forward_pre_hook(lambda module, inputs: self.begin_pass())
        else:  # its hooks are compiled too
            objective._compiled_call_impl = partial(self._new_pass, compiled)

    def _new_pass(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.begin_pass()
        return call(*args, **kwargs)

    def begin_pass(self) -> None:
        """Tell recorded graphs that a new pass begins: what they gave in the last one may be overwritten.

        torch finds that out by itself only until somebody in the process has told it once.
        """
        if self.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()

    def options(self) -> dict[str, Any]:
        """Arguments of torch.compile."""
        settings: dict[str, Any] = {"triton.cudagraphs": True} if self.cuda_graphs else {}
        options: dict[str, Any] = {}
        if self.cuda_graphs:
            options["dynamic"] = False  # a graph is of one shape; see torch's CUDAGraph Trees
        if self.checkpointing.kind == "budget":
            options["backend"] = with_memory_budget(self.checkpointing.budget, **settings)
        elif settings:
            options["options"] = settings
        return options


def own_gradients(model: nn.Module) -> None:
    """Let each parameter keep a copy of its gradient, once however often this is called.

    What a recorded graph gives is overwritten by its next run, and autograd would keep just that as the gradient of the
    first micro-batch (pytorch #169545).
    """
    for p in model.parameters():
        if p.requires_grad and copied not in (p._backward_hooks or {}).values():
            p.register_hook(copied)


def copied(gradient: Tensor) -> Tensor:
    """A copy in memory of its own."""
    return gradient.clone()
