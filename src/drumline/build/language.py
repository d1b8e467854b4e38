"""The rows of language modelling and of preferences: tokenised once, and then packed, or brought together by length."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from drumline.build.rows import Loaded, one_at_a_time
from drumline.config.data import RecordData
from drumline.config.model import HuggingFaceModel
from drumline.config.schema import RunConfig
from drumline.data.document_packing import PackedTexts, packed
from drumline.data.features import Features, PreparedStream
from drumline.data.label_places import LabelPlaces
from drumline.data.learned_tokens import (
    AnswerTokens,
    AsRows,
    ChatTokens,
    LearnedTokens,
    PreferenceFeatures,
    PreferenceTokens,
    ShiftedFeatures,
    TextTokens,
)
from drumline.data.length_order import ByLength
from drumline.data.mixture import Mixture
from drumline.data.packing import NO_LABEL
from drumline.data.padding import MULTIPLE, Pad
from drumline.data.source import Collate
from drumline.data.token_row_cache import Encoding, in_pairs, token_rows
from drumline.errors import ConfigError, DataError
from drumline.models.attention_choice import Packing, packing_of
from drumline.models.huggingface import is_pretrained

LEAST_UPDATES = 8
"""Updates of an epoch that packing must leave, to be chosen: it makes few of many short texts."""

logger = logging.getLogger("drumline.build")


def language_rows(config: RunConfig, loaded: Loaded, model: nn.Module, pad_id: int) -> tuple[Any, Any | None, Collate]:
    """Training rows and held-out rows, and how they become a batch: input_ids and labels, int64 [B, T].

    Packed ones have position_ids and cu_seqlens as well. Others have no attention_mask: they are filled up at their
    end, where a causal model never looks, and without a mask attention takes its quick way. Raises DataError where
    nothing is to be learned, ConfigError for packing that the model does not allow.
    """
    encode, context = row_features(config, loaded), loaded.facts.context
    assert context is not None
    pad = Pad({"input_ids": pad_id, "labels": NO_LABEL}, MULTIPLE, context)
    collate: Collate = LabelPlaces(pad) if is_pretrained(model) else pad
    if loaded.train.schema.num_rows is None:
        features = ShiftedFeatures(encode, context)
        return in_turn(loaded.train, features, "data.train"), _held_out(loaded, encode, config), collate
    train = on_disk(config, loaded, loaded.train, encode, "data.train")
    held_out = _held_out(loaded, encode, config)
    packing = packing_for(config, model, train, context)
    logger.info("data.packing: %s", packing.reason)
    if packing.packed:
        rows, batch = packed(train, context, pad_id)
        logger.info("data.train: %s", "; ".join(part.packs.describe() for part in _packs(rows)))
        if held_out is not None and not isinstance(held_out, PreparedStream):
            held_out, _ = packed(held_out, context, pad_id)
        return rows, held_out, LabelPlaces(batch)
    return by_length(config, train), held_out, collate


def by_length(config: RunConfig, rows: Any) -> Any:
    """Rows of tokens in updates of similar length, unless data.group_by_length is false or they are a stream."""
    data: Any = config.data
    if data.group_by_length is False or isinstance(rows, PreparedStream):
        return rows
    return ByLength(rows, window_of(config))


def row_features(config: RunConfig, loaded: Loaded) -> LearnedTokens:
    """What turns a record of language modelling into ids, and which of them are learned."""
    tokenizer, form, context = loaded.tokenizer, loaded.form, loaded.facts.context
    assert tokenizer is not None and form is not None and context is not None
    if form.kind == "text":
        return TextTokens(tokenizer)
    if form.kind == "chat":
        assert loaded.template is not None
        keep_last = getattr(config.data, "learn", "assistant") == "last"
        return ChatTokens(loaded.template, tokenizer, context, keep_last=keep_last)
    if form.kind == "prompt_completion":
        return AnswerTokens(tokenizer, loaded.template, form, context)
    raise DataError(
        f"{form.reason}; language_modelling does not learn from pairs",
        "set task.kind to preference, or name the column to learn from: --set data.columns.completion=chosen",
    )


def preference_tokens(loaded: Loaded) -> PreferenceTokens:
    """What turns a record of preferences into two rows."""
    assert loaded.tokenizer is not None and loaded.facts.context is not None
    return PreferenceTokens(loaded.tokenizer, loaded.template, loaded.facts.context)


def preference_rows(config: RunConfig, loaded: Loaded, records: Any, name: str) -> Any:
    """The pairs of answers in records, tokenised once, or as they are read where that is one after the other."""
    encode = preference_tokens(loaded)
    if records.schema.num_rows is None:
        return in_turn(records, PreferenceFeatures(encode), name)
    return in_pairs(on_disk(config, loaded, records, encode, name))


def on_disk(
    config: RunConfig, loaded: Loaded, records: Any, encode: LearnedTokens | PreferenceTokens, name: str
) -> Any:
    """The tokens of records, in the cache. Raises DataError where nothing in them is learned."""
    data: Any = config.data
    assert loaded.tokenizer is not None and loaded.facts.context is not None
    set_aside = isinstance(data, RecordData) and data.bad_rows == "set_aside"
    encoding = Encoding(
        encode if isinstance(encode, PreferenceTokens) else AsRows(encode),
        encode.key,
        loaded.tokenizer.vocab_size,
        loaded.facts.context,
        data.cache_dir,
        data.max_bad_fraction if set_aside else 0.0,
        per_record=2 if isinstance(encode, PreferenceTokens) else 1,
    )
    rows = token_rows(records, encoding, name, one_at_a_time(data.cache_dir))
    if not any(part.counts.num_learned for part in getattr(rows, "parts", (rows,))):
        form = loaded.form
        raise DataError(
            f"{name}: in no row is there a token to learn ({'' if form is None else form.reason})",
            "see whether the rows hold what the assistant says, and whether data.context leaves room for it",
        )
    return rows


def in_turn(records: Any, features: Features, name: str) -> PreparedStream:
    """Rows that are read one after the other."""
    return PreparedStream(records, features, name)


def _held_out(loaded: Loaded, encode: LearnedTokens, config: RunConfig) -> Any | None:
    records = loaded.evaluation
    if records is None:
        return None
    if records.schema.num_rows is None:
        assert loaded.facts.context is not None
        return in_turn(records, ShiftedFeatures(encode, loaded.facts.context), "data.eval")
    return on_disk(config, loaded, records, encode, "data.eval")


def packing_for(config: RunConfig, model: nn.Module, train: Any, context: int) -> Packing:
    """Whether to pack these rows for this model. Raises ConfigError where that is asked for and cannot be."""
    asked: Any = getattr(config.data, "packing", "auto")
    if not isinstance(config.model, HuggingFaceModel):
        why = f"a model of kind {config.model.kind} would mix the texts of a row"
        if asked == "packed":  # of a user's own model, the others were refused before
            raise ConfigError(f"data.packing is packed, and {why}", "set data.packing to auto")
        return Packing(False, why)
    if asked == "auto" and (few := too_few(train, window_of(config), context)):
        packing_of(model, config.model, "none")
        return Packing(False, f"auto: {few}")
    return packing_of(model, config.model, asked)


def too_few(train: Any, window: int, context: int) -> str:
    """Why packing would leave too few updates of an epoch to learn well; empty where it would not."""
    parts = getattr(train, "parts", (train,))
    weights = getattr(train, "weights", (1.0,))
    tokens = sum(weight * part.counts.num_tokens for part, weight in zip(parts, weights, strict=True))
    updates = tokens / context / window
    if updates >= LEAST_UPDATES or len(train) <= window:
        return ""
    return (
        f"packed into rows of {context:,} tokens, an epoch would have about {updates:.1f} updates of {window}: fewer "
        f"than {LEAST_UPDATES}"
    )


def window_of(config: RunConfig) -> int:
    """Rows that are brought together by length: those of an update, as far as they do not depend on the machine."""
    train = config.train
    if train.global_batch is not None:
        return train.global_batch
    return (train.batch_size_per_gpu or 1) * (train.gradient_accumulation_steps or 1)


def _packs(rows: Any) -> list[PackedTexts]:
    return list(rows.parts) if isinstance(rows, Mixture) else [rows]
