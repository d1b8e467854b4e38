"""torch.compile of the block that a model repeats."""

from __future__ import annotations

from collections import Counter

from torch import nn

from drumline.errors import ConfigError


def compile_blocks(model: nn.Module) -> None:
    """Compile each block that the model repeats, in place, so that the compiler sees one block once.

    Raises ConfigError where no block repeats.
    """
    for block in repeated_blocks(model):
        block.compile()


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the module lists that hold one class twice or more; the outermost such lists only."""
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        classes = Counter(type(child) for child in module)
        found = [child for child in module if classes[type(child)] > 1 and any(True for _ in child.children())]
        blocks += found
        inside.update(inner for block in found for inner in block.modules())
    if not blocks:
        raise ConfigError(
            f"train.compile is blocks, and a {type(model).__name__} has no block that repeats",
            "set train.compile to whole, or to none",
        )
    return blocks
