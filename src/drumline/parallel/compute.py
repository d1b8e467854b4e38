"""How the model is computed, whatever the strategy: what is applied to it, in one fixed order."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from drumline.config.compute import CheckpointingConfig, Compile, LinearConfig
from drumline.config.schema import RunConfig
from drumline.parallel.compile import compile_blocks


@dataclass(frozen=True)
class Compute:
    """The settings of a run that change how its model is computed and not what it learns."""

    precision: str
    """fp32, tf32, bf16 or fp16."""
    compile: Compile = "none"
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
        compiles the objective, model and loss in one graph.
        """
        if self.compile == "blocks":
            compile_blocks(model)
