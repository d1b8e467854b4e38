"""Rolls the model out: it acts in rooms whose goals it does not know, and learns in its context alone."""

from __future__ import annotations

import torch
from darkroom import EPISODE, START, step
from histories import NOTHING
from model import HistoryModel
from torch import Tensor


@torch.no_grad()
def roll_out(model: HistoryModel, goals: Tensor, num_episodes: int, seed: int) -> Tensor:
    """Returns [N, num_episodes] of as many agents as there are goals [N]; no weight changes.

    Actions are drawn from the model's probabilities. When the context is full, its oldest episode goes.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    goals = goals.to(device)
    context = torch.empty(len(goals), 0, 3, dtype=torch.long, device=device)
    returns = []
    for _ in range(num_episodes):
        if context.shape[1] + EPISODE > model.n_transit:
            context = context[:, EPISODE:]
        cells = torch.full_like(goals, START)
        actions, rewards, total = torch.full_like(goals, NOTHING), torch.zeros_like(goals), torch.zeros_like(goals)
        for _ in range(EPISODE):
            context = torch.cat([context, torch.stack([cells, actions, rewards], dim=1)[:, None]], dim=1)
            chances = model(context)[:, -1].float().softmax(dim=-1)
            actions = torch.multinomial(chances, 1, generator=generator)[:, 0]
            cells, rewards = step(cells, actions, goals)
            total = total + rewards
        returns.append(total)
    return torch.stack(returns, dim=1).float().cpu()
