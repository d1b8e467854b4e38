"""Encoders of two layers with a classifier of some kind, with random weights large enough that texts matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from drumline.config.inference import InferenceConfig
from drumline.infer.records import Answer, Prepared, Row
from tests.tiny_models import VOCAB_SIZE, save_tokenizer

CPU = torch.device("cpu")
WORDS = ("the", "whale", "is", "a", "fish", "and", "the", "ship", "a", "thing", "upon", "the", "wide", "old", "sea")


def save_encoder(folder: Path, kind: Any, names: tuple[str, ...] = (), **settings: Any) -> Path:
    """Save a model of this class of BERT's, with its tokenizer; names: its classes."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{
            **{"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": tokenizer.pad_token_id},
            **{"initializer_range": 0.3, **settings},
        }
    )
    if names:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
    kind(config).save_pretrained(folder)
    return folder


def config_for(folder: Path, task: dict[str, Any], **sections: Any) -> InferenceConfig:
    """Settings for one task; the files are never looked at."""
    values = {"rows": {"files": ["rows.jsonl"]}, "output": {"file": "out.jsonl"}, **sections}
    values["model"] = {"path": str(folder), **values.get("model", {})}
    return InferenceConfig.model_validate({**values, "task": task})


def texts(count: int) -> list[Row]:
    """Rows of one to many words."""
    return [Row(n, {"text": " ".join(WORDS[n % 5 :][: 1 + 3 * n % 11])}) for n in range(count)]


def prepared(predictor: Any, rows: list[Row]) -> list[Prepared]:
    """Rows in the model's form, none of which has a problem."""
    found = predictor.prepare(rows)
    assert all(isinstance(row, Prepared) for row in found), found
    return list(found)


def answers(predictor: Any, rows: list[Row]) -> list[Answer]:
    """All rows as one batch, vectors as lists."""
    found = prepared(predictor, rows)
    return run(predictor, found, max(row.length for row in found))


def run(predictor: Any, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
    """One batch; vectors as lists, to be compared."""
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in answer.items()}
        for answer in predictor.run(rows, width)
    ]
