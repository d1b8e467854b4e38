"""Texts as the mean of learned vectors of short runs of tokens: quick, and hard to beat on little data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FACTOR = 1664525
"""Multiplier modulo 2**32 that spreads neighbouring numbers (Knuth, volume 2, 3.3.4); products fit into 63 bits."""


class Ngrams(nn.Module):
    """Runs of 1 to `longest_run` tokens, hashed into a table of vectors (Joulin et al. 2016), and a linear layer.

    `forward` maps input_ids and attention_mask, int64 [B, T], to [B, num_outputs], or with num_outputs None to the
    mean vectors [B, width]. Padding counts nothing: a row gives the same whatever it is batched with.
    """

    def __init__(
        self, num_outputs: int | None, *, width: int, longest_run: int, num_buckets: int, dropout: float
    ) -> None:
        super().__init__()
        self._longest_run = longest_run
        self.vectors = nn.Embedding(num_buckets, width)
        self.dropout = nn.Dropout(dropout)
        self.head = None if num_outputs is None else nn.Linear(width, num_outputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights from torch's global generator."""
        # The mean of some hundred of these vectors has entries of about 0.05.
        nn.init.normal_(self.vectors.weight)
        if self.head is not None:
            self.head.reset_parameters()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Outputs of each row; without a mask all tokens count."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        buckets, counted = self._runs(input_ids, mask)
        weights = counted.to(self.vectors.weight.dtype)
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
        mean = F.embedding_bag(buckets, self.vectors.weight, mode="sum", per_sample_weights=weights)
        return mean if self.head is None else self.head(self.dropout(mean))

    def _runs(self, input_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The bucket of every run and whether all of its tokens count, both [B, runs]."""
        code, whole = torch.zeros_like(input_ids), torch.ones_like(mask)
        buckets, counted = [], []
        for run in range(min(self._longest_run, input_ids.shape[1])):
            length = input_ids.shape[1] - run
            code = (code[:, :length] + input_ids[:, run:] + 1) * FACTOR % 2**32
            whole = whole[:, :length] * mask[:, run:]
            buckets.append((code >> 8) % self.vectors.num_embeddings)
            counted.append(whole)
        return torch.cat(buckets, dim=1), torch.cat(counted, dim=1)
