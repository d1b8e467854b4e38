"""Small tokenizers with control tokens, saved as Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from drumline.data.tokenizers import HuggingFaceTokenizer

MARKERS = (
    *("<s>", "</s>", "<bos>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|begin_of_text|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>"),
)
"""Control tokens of the public formats, all in one tokenizer."""


def byte_level(folder: Path, special: Sequence[str] = MARKERS, template: str | None = None) -> HuggingFaceTokenizer:
    """One token a byte, and the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return saved(folder, tokenizer, special, template)


def with_spaces(folder: Path, special: Sequence[str] = MARKERS, template: str | None = None) -> HuggingFaceTokenizer:
    """As Llama's first one: a text begins with a space, which is a letter, and letters are joined to it."""
    letters = ["\u2581", *(chr(code) for code in range(33, 127)), "\n"]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    merges = [("\u2581", letter) for letter in "abcdefghijklmnopqrstuvwxyzH"]
    for merge in merges:
        vocabulary["".join(merge)] = len(vocabulary)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    return saved(folder, tokenizer, special, template)


def saved(folder: Path, tokenizer: Any, special: Sequence[str], template: str | None) -> HuggingFaceTokenizer:
    """The tokenizer as it is read from a folder."""
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return HuggingFaceTokenizer(folder)
