"""Floating-point operations of training, by formula."""

from __future__ import annotations

from torch import Tensor, nn

from drumline.models.decoder import Decoder
from drumline.models.huggingface import head_of, is_pretrained, learned_positions, text_config

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def training_flops_per_unit(model: nn.Module, context: int | None = None) -> float | None:
    """FLOPs of forward and backward for one token, PaLM's convention: 6N + 12 * layers * width * context.

    N counts the parameters that multiply (Chowdhery et al. 2022, appendix B): tables that are only looked up
    (positions, an untied input embedding) do not, a tied embedding counts once. `context` is the tokens of a row;
    None takes the model's own where it has one. None as answer: not known for this model (mixture of experts, rotary
    positions without `context`, anything but a causal language model).
    """
    if isinstance(model, Decoder):
        shape = model.shape
        output = model.tokens.weight if model.head is None else model.head.weight
        return _palm(model, output, shape.num_layers * shape.width * (context or shape.context))
    if not is_pretrained(model) or head_of(model) != "causal":
        return None
    config = text_config(model)
    length = context or learned_positions(model)
    if length is None or any(getattr(config, name, None) for name in _EXPERTS):
        return None
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * config.num_attention_heads * head_width * length
    return _palm(model, model.get_output_embeddings().weight, attention)  # type: ignore[operator]


def _palm(model: nn.Module, output: Tensor, attention: int) -> float:
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)} - {id(output)}
    multiplying = sum(weight.numel() for weight in model.parameters() if id(weight) not in tables)
    return float(6 * multiplying + 12 * attention)
