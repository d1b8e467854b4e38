"""The transformer that reads a learning history, and goes on with it: a small GPT, one token a transition."""

from __future__ import annotations

import torch
from darkroom import NUM_ACTIONS, SIZE
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(nn.Module):
    """Attention to what came before, then a layer of its own for each token; norms first (as in GPT-2)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T, width] to the same."""
        heads = self.inputs(self.norm_attention(tokens)).unflatten(-1, (3, self._num_heads, -1)).transpose(1, 3)
        queries, keys, values = heads.unbind(2)
        seen = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        tokens = tokens + self.outputs(seen.transpose(1, 2).flatten(2))
        fed: Tensor = self.feed(self.norm_feed(tokens))
        return tokens + fed


class HistoryModel(nn.Module):
    """Predicts the learner's next action at each place of a history.

    A token is one transition: the cell where it led, as row and column, and the action and the reward that led there.
    Its three parts are embedded and added up, so that a context is as long as there are steps in it.
    """

    def __init__(self, width: int, num_layers: int, num_heads: int, n_transit: int) -> None:
        super().__init__()
        self.n_transit = n_transit
        self.rows, self.columns = nn.Embedding(SIZE, width), nn.Embedding(SIZE, width)
        self.actions, self.rewards = nn.Embedding(NUM_ACTIONS + 1, width), nn.Embedding(2, width)
        self.places = nn.Embedding(n_transit, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUM_ACTIONS)
        for each in self.modules():
            if isinstance(each, nn.Linear | nn.Embedding):
                nn.init.normal_(each.weight, std=0.02 if isinstance(each, nn.Linear) else 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, T, NUM_ACTIONS] of tokens [B, T, 3 or more], T at most n_transit."""
        cells, actions, rewards = (tokens[..., part].long() for part in range(3))
        where = self.rows(cells // SIZE) + self.columns(cells % SIZE)
        embedded = where + self.actions(actions) + self.rewards(rewards)
        embedded = embedded + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.head(self.norm(self.blocks(embedded)))
        return logits


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean over batch and places of the next action's cross-entropy, in nats; guessing costs ln 5 = 1.61."""
    return cross_entropy(model(tokens).flatten(0, 1), tokens[..., 3].long().flatten())
