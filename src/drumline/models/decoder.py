"""The reference decoder in GPT-2's or Llama's shape, written for torch.compile and fused attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from drumline.config.model import DecoderModel
from drumline.errors import ConfigError, ValueRangeError
from drumline.models.attention import Attention, RotaryPositions, Rotation
from drumline.models.chunked_loss import Output, SummedLoss, chunked_cross_entropy

INIT_STD = 0.02
"""Standard deviation of fresh weights (Radford et al. 2019)."""
VOCAB_MULTIPLE = 64
"""Rows of the embedding are rounded up to this, so that the output matrix fills whole tensor-core tiles."""
NORM_EPS = 1e-5
"""What both published families use."""


@dataclass(frozen=True)
class DecoderShape:
    """Every number that fixes a decoder's parameters; raises ConfigError for a shape that cannot be built."""

    style: Literal["gpt2", "llama"]
    num_layers: int
    num_heads: int
    num_kv_heads: int
    width: int
    mlp_width: int
    dropout: float
    tie_embeddings: bool
    vocab_size: int
    context: int

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ConfigError(
                f"model.width {self.width} is no multiple of model.num_heads {self.num_heads}",
                f"set model.width to {-(-self.width // self.num_heads) * self.num_heads}, or change model.num_heads",
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_heads {self.num_heads} is no multiple of model.num_kv_heads {self.num_kv_heads}",
                "set model.num_kv_heads to a divisor of model.num_heads",
            )
        if self.style == "llama" and (self.width // self.num_heads) % 2:
            raise ConfigError(
                f"a head is {self.width // self.num_heads} wide, and rotary positions turn channels in pairs",
                "choose model.width and model.num_heads so that their ratio is even",
            )


class GeluMlp(nn.Module):
    """Two layers with the tanh form of GELU in between (GPT-2)."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, mlp_width)
        self.out = nn.Linear(mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] to [B, T, width]."""
        return self.out(F.gelu(self.up(x), approximate="tanh"))  # type: ignore[no-any-return]


class GatedMlp(nn.Module):
    """SwiGLU (Shazeer 2020): a SiLU gate times a linear layer.

    They are two products: gradients of one would have to be laid side by side, which costs more than it saves.
    """

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, mlp_width, bias=False)
        self.up = nn.Linear(width, mlp_width, bias=False)
        self.out = nn.Linear(mlp_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] to [B, T, width]."""
        return self.out(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


def _norm(shape: DecoderShape) -> nn.LayerNorm | nn.RMSNorm:
    if shape.style == "gpt2":
        return nn.LayerNorm(shape.width, eps=NORM_EPS)
    return nn.RMSNorm(shape.width, eps=NORM_EPS)


class Block(nn.Module):
    """Attention, then the MLP, each on normalised input and added to the residual stream."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        gpt2 = shape.style == "gpt2"
        self.attention_norm = _norm(shape)
        self.attention = Attention(shape.width, shape.num_heads, shape.num_kv_heads, bias=gpt2)
        self.mlp_norm = _norm(shape)
        self.mlp = GeluMlp(shape.width, shape.mlp_width) if gpt2 else GatedMlp(shape.width, shape.mlp_width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """[B, T, width] to [B, T, width]."""
        x = x + self.dropout(self.attention(self.attention_norm(x), rotation))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))  # type: ignore[no-any-return]


class OutputLayer(nn.Linear):
    """From states to logits, or with labels to their loss."""

    sharded_alone = True
    """See fsdp: nothing but its own calls, the last of a pass, reads its weight."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__(width, vocab_size, bias=False)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor | SummedLoss:  # type: ignore[override]
        """[B, T, width] to [B, T, vocab_size], or with labels [B, T] to the loss."""
        return super().forward(x) if labels is None else chunked_cross_entropy(x, Output(self.weight), labels)


class Decoder(nn.Module):
    """A causal language model; `forward` maps token ids [B, T] to logits [B, T, vocab_size], or to a loss."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width) if shape.style == "gpt2" else None
        self.rotary = RotaryPositions(shape.width // shape.num_heads, shape.context) if shape.style == "llama" else None
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = _norm(shape)
        # Tied: no module of its own, so that the state dict holds the matrix once.
        self.head = None if shape.tie_embeddings else OutputLayer(shape.width, shape.vocab_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights from torch's global generator, and fill the rotary table.

        Normal with standard deviation 0.02; the matrices that write to the residual stream have it divided by
        sqrt(2 * layers), so that the stream's variance does not grow with depth (Radford et al. 2019).
        """
        writers = {id(part.out) for part in self.modules() if isinstance(part, Attention | GeluMlp | GatedMlp)}
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                shrink = (2 * self.shape.num_layers) ** -0.5 if id(module) in writers else 1.0
                nn.init.normal_(module.weight, std=INIT_STD * shrink)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm | RotaryPositions):
                module.reset_parameters()

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor | SummedLoss:
        """Logits of the next token at each position; raises ValueRangeError for rows longer than the context.

        With labels [B, T], of which -100 do not count: the cross-entropy instead, without all logits in memory. It is
        computed in here, where a strategy that shards the model has the output layer's weight whole.
        """
        length = input_ids.shape[1]
        if length > self.shape.context:
            raise ValueRangeError(
                f"rows have {length} tokens, the model's context is {self.shape.context}",
                "cut the rows, or build the model with a larger context",
            )
        x = self.tokens(input_ids)
        if self.positions is not None:
            x = x + self.positions.weight[:length]
        rotation = None if self.rotary is None else self.rotary(length)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, rotation)
        x = self.norm(x)
        if self.head is not None:
            return self.head(x, labels)  # type: ignore[no-any-return]
        if labels is not None:
            return chunked_cross_entropy(x, Output(self.tokens.weight), labels)
        return F.linear(x, self.tokens.weight)


def decoder_from_config(config: DecoderModel, vocab_size: int, context: int) -> Decoder:
    """The decoder that a recipe describes, for a tokenizer of `vocab_size` ids and rows of `context` tokens.

    Raises ConfigError for a shape that cannot be built or a model.vocab_size below the tokenizer's.
    """
    if config.vocab_size is not None and config.vocab_size < vocab_size:
        raise ConfigError(
            f"model.vocab_size is {config.vocab_size}, the tokenizer has {vocab_size} ids",
            f"set model.vocab_size to at least {vocab_size}, or leave it out",
        )
    default_mlp_width = 4 * config.width if config.style == "gpt2" else _round_up(-(-8 * config.width // 3), 64)
    return Decoder(
        DecoderShape(
            style=config.style,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads or config.num_heads,
            width=config.width,
            mlp_width=config.mlp_width or default_mlp_width,
            dropout=config.dropout,
            tie_embeddings=config.tie_embeddings,
            vocab_size=config.vocab_size or _round_up(vocab_size, VOCAB_MULTIPLE),
            context=context,
        )
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
