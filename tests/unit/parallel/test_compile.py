from __future__ import annotations

import pytest
from torch import nn

from drumline.errors import ConfigError
from drumline.parallel.compile import repeated_blocks


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(block() for _ in range(3))


def test_the_members_of_a_list_of_equal_blocks() -> None:
    model = Deep()
    assert repeated_blocks(model) == list(model.blocks)


def test_blocks_inside_of_blocks_are_part_of_them() -> None:
    model = nn.ModuleList(Deep() for _ in range(2))
    assert repeated_blocks(model) == list(model)


def test_layers_are_no_blocks() -> None:
    with pytest.raises(ConfigError, match="no block that repeats"):
        repeated_blocks(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
