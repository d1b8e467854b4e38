"""How a model is told what is padding, so that a row's answer depends on nothing but itself and the batch's shape."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.infer.text_inputs import PaddedIds
from drumline.models.huggingface import text_config

Form = Literal["none", "broadcast", "rows"]
"""none: a causal model never sees the padding at its right. broadcast: [B, 1, 1, T], which goes to the attention as it
is. rows: [B, T], of which transformers makes what the model needs, another thing where no row is padded at all."""

WIDTH, SHORT = 8, 5
CLOSE, CLOSE_IN_HALF = 1e-3, 0.05
"""Hidden states that are further apart, as a share of the largest, are other ones."""

logger = logging.getLogger(__name__)


class MaskedBody:
    """Calls a transformers model with padded ids."""

    def __init__(self, model: nn.Module, device: torch.device, form: Form | None = None) -> None:
        """form: None finds out, by the model's kind and a try."""
        self._model = model
        self.device = device
        self.form: Form = mask_form(model, device) if form is None else form
        forward = inspect.signature(model.forward).parameters
        kinds = getattr(text_config(model), "type_vocab_size", None)
        self._tells_texts_apart = "token_type_ids" in forward and (kinds is None or kinds > 1)

    def __call__(self, batch: PaddedIds) -> Any:
        """The model's output."""
        more: dict[str, Tensor] = {}
        if batch.type_ids is not None and self._tells_texts_apart:
            more["token_type_ids"] = batch.type_ids
        return self._model(input_ids=batch.ids, **mask_arguments(self.form, batch.mask), **more)


def mask_arguments(form: Form, mask: Tensor) -> dict[str, Tensor]:
    """The mask [B, T] as an argument of the model."""
    if form == "none":
        return {}
    return {"attention_mask": mask[:, None, None, :] if form == "broadcast" else mask.long()}


def mask_form(model: nn.Module, device: torch.device) -> Form:
    """The form that is right for this model.

    With `rows` transformers leaves the mask out where no row of a batch is padded, and other kernels are used: the
    answers of a batch then change in their last bits when one of its rows is filled in for. The other two do not.
    """
    guess = by_kind(model)
    if guess == "rows":
        return guess
    try:
        right = _is_right(model, device, guess)
    except Exception as error:  # whatever a model makes of a mask that it was not made for
        logger.info("%s takes masks [B, T] alone: %s", type(model).__name__, error)
        return "rows"
    return guess if right else "rows"


def by_kind(model: nn.Module) -> Form:
    """What the model's parts say: whether their attention is causal, and whether all of it sees everything."""
    causal = {bool(module.is_causal) for module in model.modules() if hasattr(module, "is_causal")}
    config: Any = text_config(model)
    if causal == {True}:
        return "none"
    local = any(getattr(config, name, None) for name in ("sliding_window", "local_attention", "attention_window"))
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    fused = getattr(config, "_attn_implementation", None) == "sdpa"
    return "broadcast" if causal == {False} and fused and not local and kinds == {"full_attention"} else "rows"


@torch.inference_mode()
def _is_right(model: nn.Module, device: torch.device, form: Form) -> bool:
    """Whether a short row gets the states that it gets with the mask that transformers knows, whatever fills it up."""
    body: Any = getattr(model, "base_model", model)
    ids = torch.arange(3, 3 + 2 * WIDTH, device=device).view(2, WIDTH) % int(text_config(model).vocab_size)
    lengths = torch.tensor([SHORT, WIDTH], device=device)
    mask = torch.arange(WIDTH, device=device) < lengths[:, None]
    states: Callable[[Form], Tensor] = lambda how: (  # noqa: E731
        body(input_ids=ids, **mask_arguments(how, mask)).last_hidden_state[mask].float()
    )
    wanted, found = states("rows"), states(form)
    limit = CLOSE if next(model.parameters()).dtype == torch.float32 else CLOSE_IN_HALF
    return bool((wanted - found).abs().max() <= limit * wanted.abs().max())
