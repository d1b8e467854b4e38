"""Hugging Face models from a folder or the hub, and what can be read from such a model."""

from __future__ import annotations

import inspect
import logging
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.config.model import HuggingFaceModel
from drumline.errors import ConfigError, MissingExtra
from drumline.models.hub import find_folder, refuse_code

Head = Literal[
    "causal",
    "masked",
    "token_classification",
    "sequence_classification",
    "image_classification",
    "sequence_to_sequence",
    "embedding",
]
"""What a model ends in. embedding: the body alone, one vector a row."""

_CLASSIFIERS = ("token_classification", "sequence_classification", "image_classification")
"""Heads that may be new, since their classes are the data's own."""

CHOSEN_LATER = ("auto", "varlen")
"""Kinds of attention that need the device, or batches made for them: the model is loaded with torch's fused one."""

_HEADS: tuple[tuple[str, Head], ...] = (
    (r"(ForCausalLM|LMHeadModel)$", "causal"),
    (r"ForMaskedLM$", "masked"),
    (r"ForTokenClassification$", "token_classification"),
    (r"ForSequenceClassification$", "sequence_classification"),
)

_logger = logging.getLogger(__name__)


def is_pretrained(model: object) -> bool:
    """Whether the model is one of transformers', told by name so that nothing is imported."""
    return any(
        base.__name__ == "PreTrainedModel" and base.__module__.partition(".")[0] == "transformers"
        for base in type(model).__mro__
    )


def head_of(model: nn.Module) -> Head | None:
    """What a transformers model is trained for, by its class names; None where its loss is not known to us.

    causal only where the loss is transformers' own, which shifts the labels: the decoders that were cut out of
    Bart, Whisper and their like are named ForCausalLM too and compare position by position.
    """
    for base in type(model).__mro__:
        for pattern, head in _HEADS:
            if re.search(pattern, base.__name__):
                return None if head == "causal" and not _uses_library_loss(base) else head
    return None


def _uses_library_loss(model_class: type) -> bool:
    return "loss_function" in inspect.unwrap(model_class.forward).__code__.co_names  # type: ignore[attr-defined]


def learned_positions(model: nn.Module) -> int | None:
    """Longest row that a transformers model with a table of learned positions can take; None without such a table."""
    limit = getattr(text_config(model), "max_position_embeddings", None)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tokens = model.get_input_embeddings()  # type: ignore[operator]
    # OPT's table has two rows more than positions.
    found = any(table is not tokens and table.num_embeddings in (limit, limit + 2) for table in tables if limit)
    return limit if found else None


def text_config(model: nn.Module) -> Any:
    """The part of a transformers model's configuration that describes its language model."""
    return model.config.get_text_config()  # type: ignore[union-attr, operator]


def load_model(
    config: HuggingFaceModel, head: Head, num_labels: int | None = None, *, values: bool = True
) -> nn.Module:
    """The model of a folder or of the hub, in `config.weights` and training mode, its cache of keys and values off.

    num_labels: classes of a classifier, whose last layer is made anew where the folder's has another number; None
    keeps it. values: False gives it on the meta device, with the shapes that it has elsewhere, and reads no weights.
    Raises ConfigError where there is no such model, DataError where the hub cannot be reached, MissingExtra without
    transformers.
    """
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    auto = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "token_classification": transformers.AutoModelForTokenClassification,
        "sequence_classification": transformers.AutoModelForSequenceClassification,
        "image_classification": transformers.AutoModelForImageClassification,
        "sequence_to_sequence": transformers.AutoModelForSeq2SeqLM,
        "embedding": transformers.AutoModel,
    }[head]
    folder = find_folder(config, weights=values)
    refuse_code(config, folder)
    options: dict[str, Any] = {"dtype": config.weights, "trust_remote_code": config.trust_remote_code}
    if config.attention not in CHOSEN_LATER:
        options["attn_implementation"] = config.attention
    try:
        shape, new_head = _read_shape(config, folder, head, num_labels)
        if config.random_weights or not values:
            with nullcontext() if values else torch.device("meta"):
                model = auto.from_config(shape, **options)
        else:
            model, info = auto.from_pretrained(
                folder,
                config=shape,
                ignore_mismatched_sizes=new_head,
                output_loading_info=True,
                local_files_only=True,
                weights_only=True,
                **options,
            )
            _refuse_missing(config, head, model, set(info["missing_keys"]))
    except ImportError as error:
        raise ConfigError(
            f"model.path {config.path} with model.attention {config.attention} needs what is not installed: {error}",
            "install it, or set model.attention to auto",
        ) from error
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"model.path {config.path} could not be loaded as {head}: {error}",
            "check that the folder is complete and of that kind, or set model.random_weights to take its shape only",
        ) from error
    whole: nn.Module = Embedder(model) if head == "embedding" else model
    return whole.train()


class Embedder(nn.Module):
    """One vector a row: the mean of the last hidden states of its tokens (Reimers and Gurevych 2019).

    body: a transformers model without a head. forward takes what the body takes, by name, and gives [B, D].
    """

    def __init__(self, body: Any) -> None:
        super().__init__()
        if getattr(body, "pooler", None) is not None:
            body.pooler = None  # another way to come to one vector, which would never be trained
        self.body = body

    @property
    def config(self) -> Any:
        """The body's configuration."""
        return self.body.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Tensor:
        """Ids [B, T] and mask [B, T], 0 for padding, to vectors [B, D]."""
        states: Tensor = self.body(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state
        if attention_mask is None:
            return states.mean(1)
        mask = attention_mask.to(states.dtype).unsqueeze(-1)
        return (states * mask).sum(1) / mask.sum(1).clamp(min=1.0)


def _read_shape(config: HuggingFaceModel, folder: Path, head: Head, num_labels: int | None) -> tuple[Any, bool]:
    """The folder's configuration as the run needs it, and whether its classification head is replaced."""
    import transformers

    shape = transformers.AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=config.trust_remote_code
    )
    text = shape.get_text_config()
    shape.use_cache = text.use_cache = False
    new_head = num_labels is not None and num_labels != shape.num_labels
    if new_head:
        shape.num_labels = num_labels
    if head == "sequence_classification" and text.pad_token_id is None:
        end = text.eos_token_id[0] if isinstance(text.eos_token_id, list) else text.eos_token_id
        if end is None:
            raise ConfigError(
                f"{config.path} names no padding token, so the model cannot find the last token of a row",
                "set pad_token_id in its config.json to the id that your rows are padded with",
            )
        _logger.info("%s names no padding token: the end token %d is taken; pad rows with it", config.path, end)
        shape.pad_token_id = text.pad_token_id = end
    if head == "sequence_to_sequence" and getattr(shape, "decoder_start_token_id", None) is None:
        raise ConfigError(
            f"{config.path} does not say what token a target begins with",
            "set decoder_start_token_id in its config.json, for T5 to its pad_token_id",
        )
    return shape, new_head


def _refuse_missing(config: HuggingFaceModel, head: Head, model: nn.Module, missing: set[str]) -> None:
    """Raise ConfigError where weights would silently stay random; a new classification head may."""
    if head == "embedding":
        missing = {name for name in missing if not name.startswith("pooler.")}  # dropped anyway
    if head in _CLASSIFIERS:
        prefix = f"{model.base_model_prefix}."
        body = {name for name, _ in model.named_parameters() if name.startswith(prefix)}
        # A pooling layer is often absent from a language model's checkpoint; a whole body never.
        if not body or not body <= missing:
            return
    if missing:
        raise ConfigError(
            f"{config.path} lacks {len(missing)} of the model's weights, {min(missing)} among them",
            "give the folder of a complete checkpoint, or set model.random_weights to take its shape only",
        )
