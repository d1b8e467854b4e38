"""Which tokens a model knows."""

from __future__ import annotations

from torch import nn

from drumline.data.tokenizers import Ids
from drumline.models.decoder import Decoder
from drumline.models.huggingface import is_pretrained


def vocabulary_of(model: nn.Module) -> int | None:
    """How many tokens a model knows; None where it does not say."""
    if isinstance(model, Decoder):
        return model.tokens.num_embeddings
    return len(model.get_input_embeddings().weight) if is_pretrained(model) else None  # type: ignore[operator]


def unknown_token(ids: Ids, vocabulary: int | None) -> str | None:
    """What is wrong with a row that holds a token behind the last one: on a GPU it would end the process."""
    if vocabulary is None or not len(ids) or int(ids.max()) < vocabulary:
        return None
    return f"it holds the token {int(ids.max()):,}, and the model knows {vocabulary:,}"
