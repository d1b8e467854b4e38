"""Writes docs/seeds.md: what became of each code block of the five documents."""

from __future__ import annotations

from collections.abc import Mapping

from tests.seeds import email_sequences, hate_speech, onyx_ads, opus_clip
from tests.seeds.blocks import NAMES, blocks_of
from tests.seeds.cases import Case

CASES: Mapping[str, Mapping[int, Case]] = {
    "onyx_ads": onyx_ads.CASES,
    "email_sequences": email_sequences.CASES,
    "opus_clip": opus_clip.CASES,
    "hate_speech": hate_speech.CASES,
}
"""By document and block."""
TITLES = {
    "onyx_ads": "000: language models on ad texts, through a service",
    "email_sequences": "001: e-mail sequence models",
    "opus_clip": "002: video-clip models",
    "darkroom": "003: Algorithm Distillation on darkroom",
    "hate_speech": "004: a data set labelled by a large model",
}
BEFORE = """# The five documents, block by block

"""


def seeds_page() -> str:
    """The whole page."""
    return BEFORE + "\n".join(table(name) for name in NAMES if name in CASES)


def table(name: str) -> str:
    """One document's blocks."""
    rows = [
        f"| {block.number} | {block.line} | {block.language} | {CASES[name][block.number].result(block.language)} |"
        for block in blocks_of(name)
    ]
    return "\n".join([f"## {TITLES[name]}", "", "| block | line | language | result |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    print(seeds_page(), end="")
