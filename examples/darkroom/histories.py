"""Learning histories: what tabular Q-learning does from its first episode on, a table for each goal."""

from __future__ import annotations

import torch
from darkroom import EPISODE, NUM_ACTIONS, NUM_CELLS, START, step
from torch import Tensor
from torch.utils.data import Dataset

NOTHING = NUM_ACTIONS
"""Stands for the action before an episode's first."""
DISCOUNT = 0.9
OPTIMISM = 0.2
"""The reward that is expected of a cell where nobody was: more than nothing, and less than the goal's 1."""
SWEEPS = 2
"""Of Q-learning over the whole table, after each step."""


def collect(goals: Tensor, num_episodes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Histories of a learner for each of `goals` [N]: tokens [N, num_episodes * EPISODE, 4], returns [N, num_episodes].

    A token is the cell, the action and the reward before it, and the action that the learner took then, all uint8.
    The learner is Dyna-Q (Sutton 1990): it remembers the reward of each cell, and replays all moves from memory. It is
    greedy, with ties broken at random, and seeks out what it does not know (R-max, Brafman and Tennenholtz 2002).
    """
    generator = torch.Generator().manual_seed(seed)
    learners = torch.arange(len(goals))
    every_cell, every_action = torch.arange(NUM_CELLS)[:, None], torch.arange(NUM_ACTIONS)[None]
    neighbours, _ = step(*torch.broadcast_tensors(every_cell, every_action, torch.tensor(-1)))
    remembered = torch.full((len(goals), NUM_CELLS), OPTIMISM)
    worth = remembered / (1 - DISCOUNT)  # of each cell: the best of the table's row
    remembered[:, START] = 0
    tokens, returns = [], []
    for _ in range(num_episodes):
        cells = torch.full_like(goals, START)
        actions, rewards, total = torch.full_like(goals, NOTHING), torch.zeros_like(goals), torch.zeros_like(goals)
        for _ in range(EPISODE):
            for _ in range(SWEEPS):
                values = (remembered + DISCOUNT * worth)[:, neighbours]
                worth = values.amax(dim=2)
            noise = 1e-3 * torch.rand(len(goals), NUM_ACTIONS, generator=generator)
            chosen = (values[learners, cells] + noise).argmax(dim=1)
            tokens.append(torch.stack([cells, actions, rewards, chosen], dim=1).to(torch.uint8))
            cells, rewards = step(cells, chosen, goals)
            remembered[learners, cells] = rewards.float()
            actions, total = chosen, total + rewards
        returns.append(total)
    return torch.stack(tokens, dim=1), torch.stack(returns, dim=1).float()


class Contexts(Dataset[Tensor]):
    """All pieces of histories that begin with an episode, of `n_transit` transitions: rows [n_transit, 4] of uint8."""

    def __init__(self, tokens: Tensor, n_transit: int) -> None:
        self._tokens = tokens
        self._n_transit = n_transit
        self._starts = (tokens.shape[1] - n_transit) // EPISODE + 1
        if self._starts < 1:
            raise ValueError(
                f"histories have {tokens.shape[1]} transitions, a context {n_transit}: collect more episodes"
            )

    def __len__(self) -> int:
        return len(self._tokens) * self._starts

    def __getitem__(self, row: int) -> Tensor:
        history, start = divmod(row, self._starts)
        return self._tokens[history, start * EPISODE : start * EPISODE + self._n_transit]
