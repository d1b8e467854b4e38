"""The dark room: a grid whose goal cannot be seen, only felt. Many rooms at once, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

SIZE = 9
"""Rows and columns."""
NUM_CELLS = SIZE * SIZE
"""Cells, counted row by row; each of them can be the goal."""
START = NUM_CELLS // 2
"""Where every episode begins: the middle."""
MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Rows and columns that the five actions move by: stay, up, down, left, right."""
NUM_ACTIONS = len(MOVES)
EPISODE = 20
"""Steps of an episode."""


def step(cells: Tensor, actions: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """Cells after the actions, and rewards: 1 at the goal, else 0; int64, all of one shape. A wall holds one back."""
    moves = torch.tensor(MOVES, device=cells.device)[actions]
    rows = (cells // SIZE + moves[..., 0]).clamp(0, SIZE - 1)
    columns = (cells % SIZE + moves[..., 1]).clamp(0, SIZE - 1)
    after = rows * SIZE + columns
    return after, (after == goals).long()


def best_return(goals: Tensor) -> Tensor:
    """The most that an episode can give, float32: straight to the goal, and stay."""
    distance = (goals // SIZE - START // SIZE).abs() + (goals % SIZE - START % SIZE).abs()
    return (EPISODE + 1 - distance.clamp(min=1)).float()


def split_goals(num_held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """All goals in two: those of the training histories, and those that no history has seen."""
    order = torch.randperm(NUM_CELLS, generator=torch.Generator().manual_seed(seed))
    return order[num_held_out:], order[:num_held_out]
