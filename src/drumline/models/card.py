"""The README.md of an exported model: what it is, how it is loaded, and what it comes from. Pure text, no model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FILE = "README.md"

_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*$", re.MULTILINE | re.DOTALL)

_NAME = re.compile(r"[\w./-]+")

_USES = {
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "text-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "token-classification": "AutoModelForTokenClassification",
    "feature-extraction": "AutoModel",
}
"""The class that loads a model, by the hub's name of what it does."""


@dataclass(frozen=True)
class Table:
    """A part of a card: rows of cells under a header, or nothing where there are no rows."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    names: bool = False
    """Whether the first column holds names of settings or metrics."""


@dataclass(frozen=True)
class Card:
    """What a card says. Values come from settings and records, never from the texts that were learned from."""

    title: str
    about: str
    does: str
    """The hub's name of it, as text-generation."""
    base: str | None = None
    """Of the model that training began with; None where it has no name on the hub."""
    license: str | None = None
    """As the model that training began with names it."""
    adapter: bool = False
    num_labels: int | None = None
    """Classes, or numbers of a regression; None where there are none."""
    chats: bool = False
    """Whether there is a chat template."""
    tables: Sequence[Table] = field(default=())
    version: str = ""
    """Of drumline."""


def render_card(card: Card) -> str:
    """The card as Markdown, with the front matter that the hub reads."""
    parts = [f"---\n{front_matter(card)}---\n", f"# {escape(card.title)}\n", f"{escape(card.about)}\n"]
    parts.append(f"## How to load it\n\n```python\n{code_of(card)}```\n")
    parts += [render_table(table) for table in card.tables if table.rows]
    parts.append(f"Written by drumline {card.version} from the records of the run.\n")
    return "\n".join(parts)


def front_matter(card: Card) -> str:
    """The YAML at the top, with what is known."""
    values: dict[str, Any] = {
        "library_name": "peft" if card.adapter else "transformers",
        "pipeline_tag": card.does,
        "base_model": card.base,
        "base_model_relation": None if card.base is None else "adapter" if card.adapter else "finetune",
        "license": card.license,
        "tags": ["drumline"],
    }
    known = {name: value for name, value in values.items() if value is not None}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True)


def code_of(card: Card) -> str:
    """Lines that load the model with transformers, or its adapter with peft, and use it once."""
    auto, writes = _USES[card.does], card.does in ("text-generation", "text2text-generation")
    reads = "AutoImageProcessor" if card.does == "image-classification" else "AutoTokenizer"
    lines = ["from peft import PeftModel"] if card.adapter else []
    lines += [
        f"from transformers import {', '.join(sorted([auto, reads]))}",
        "",
        'folder = "."  # where this file lies',
    ]
    if card.adapter:
        labels = "" if card.num_labels is None else f", num_labels={card.num_labels}"
        lines.append(f'model = {auto}.from_pretrained("{card.base or "folder of the base model"}"{labels})')
        lines.append("model = PeftModel.from_pretrained(model, folder)")
    else:
        lines.append(f"model = {auto}.from_pretrained(folder)")
    if card.does == "image-classification":
        return "\n".join([*lines, "processor = AutoImageProcessor.from_pretrained(folder)", ""])
    lines.append("tokenizer = AutoTokenizer.from_pretrained(folder)")
    if card.does == "text-generation" and card.chats:
        lines += [
            'messages = [{"role": "user", "content": "..."}]',
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
    else:
        lines.append('inputs = tokenizer("...", return_tensors="pt")')
    if writes:
        lines.append("print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0]))")
    elif card.does == "feature-extraction":
        lines.append("vector = model(**inputs).last_hidden_state.mean(1)  # of one text, without padding")
    else:
        lines.append("print(model(**inputs).logits)")
    return "\n".join([*lines, ""])


def render_table(table: Table) -> str:
    """A heading, a table and its note."""
    lines = [f"## {table.title}", "", *([escape(table.note), ""] if table.note else [])]
    lines.append(f"| {' | '.join(table.header)} |")
    lines.append(f"|{'|'.join('---' for _ in table.header)}|")
    for first, *others in table.rows:
        begin = f"`{first}`" if table.names and _NAME.fullmatch(first) else escape(first)
        lines.append(f"| {' | '.join([begin, *map(escape, others)])} |")
    return "\n".join([*lines, ""])


def escape(text: str) -> str:
    """A text in one line in which nothing is markup: names of files and columns may hold any character."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(str(text).split()))


def license_of(folder: Path) -> str | None:
    """The licence that a model's folder names, in its card's front matter or config.json; None where it does not."""
    for name in (FILE, "config.json"):
        try:
            text = (folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if name == FILE:
            found = _FRONT.search(text)
            text = found[1] if found else ""
        try:
            values = yaml.safe_load(text)  # JSON is YAML
        except yaml.YAMLError:
            continue
        value = values.get("license") if isinstance(values, Mapping) else None
        if isinstance(value, str) and value:
            return value
    return None
