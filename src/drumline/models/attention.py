"""Causal self-attention with grouped heads, and rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROTARY_BASE = 10000.0
"""Base of the rotation's wavelengths (Su et al. 2021, RoFormer)."""

Rotation = tuple[Tensor, Tensor]
"""Cosines, and sines that are negative in the first half of the channels; each [T, head width]."""


class RotaryPositions(nn.Module):
    """Table of the angles by which queries and keys are turned at each position (Su et al. 2021)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, context: int) -> None:
        super().__init__()
        self._head_width = head_width
        table = torch.empty(context, head_width)
        # Not persistent: they follow from the shape, and a checkpoint must not fix the context.
        self.register_buffer("cos", table, persistent=False)
        self.register_buffer("sin", table.clone(), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the table; computed in float32 whatever the model's type."""
        channels = torch.arange(0, self._head_width, 2, dtype=torch.float32, device=self.cos.device)
        frequencies = ROTARY_BASE ** (-channels / self._head_width)
        positions = torch.arange(self.cos.shape[0], dtype=torch.float32, device=self.cos.device)
        angles = positions[:, None] * frequencies[None, :]
        self.cos.copy_(angles.cos().repeat(1, 2))
        self.sin.copy_(torch.cat((-angles.sin(), angles.sin()), dim=1))

    def forward(self, length: int) -> Rotation:
        """Angles of the first `length` positions."""
        return self.cos[:length], self.sin[:length]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn channel i together with channel i + half by its position's angle; x is [B, heads, T, head width].

    The pairing is the one of Hugging Face's Llama weights. Done in the table's float32 under autocast.
    """
    cos, sin = rotation
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention; keys and values may have fewer heads than queries (Ainslie et al. 2023)."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_width = width // num_heads
        # One matrix for queries, keys and values, in this order: one large product instead of three.
        self.qkv = nn.Linear(width, (num_heads + 2 * num_kv_heads) * self.head_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """[B, T, width] to [B, T, width]."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, self.num_heads + 2 * self.num_kv_heads, self.head_width).transpose(1, 2)
        turned, value = heads.split((self.num_heads + self.num_kv_heads, self.num_kv_heads), dim=1)
        if rotation is not None:
            turned = rotate(turned, rotation)  # queries and keys in one pass
        query, key = turned.split((self.num_heads, self.num_kv_heads), dim=1)
        grouped = self.num_heads != self.num_kv_heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]
