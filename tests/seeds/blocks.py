"""The code blocks of the five documents that drumline implements, as they are written there."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = Path(__file__).parent / "documents"
NAMES = ("onyx_ads", "email_sequences", "opus_clip", "darkroom", "hate_speech")
"""Of the documents, in their order: 000 to 004."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its place among the document's, from 1, the line of its fence, its language and text."""

    number: int
    line: int
    language: str
    text: str


def blocks_of(document: str) -> list[Block]:
    """All fenced blocks of a document; those in lists without their indentation. Raises ValueError for one without end.

    A block without a language is `text`.
    """
    lines = (DOCUMENTS / f"{document}.txt").read_text(encoding="utf-8").splitlines()
    fences = [number for number, line in enumerate(lines, 1) if line.strip().startswith("```")]
    if len(fences) % 2:
        raise ValueError(f"{document}: the block at line {fences[-1]} has no end")
    found: list[Block] = []
    for first, last in zip(fences[::2], fences[1::2], strict=True):
        language = lines[first - 1].strip().removeprefix("```") or "text"
        text = textwrap.dedent("\n".join(lines[first : last - 1])) + "\n"
        found.append(Block(len(found) + 1, first, language, text))
    return found
