"""Writes docs/seeds.md: what became of each code block of the five documents."""

from __future__ import annotations

from collections.abc import Mapping

from tests.seeds import darkroom, email_sequences, hate_speech, onyx_ads, opus_clip
from tests.seeds.blocks import NAMES, blocks_of
from tests.seeds.cases import Case

CASES: Mapping[str, Mapping[int, Case]] = {
    "onyx_ads": onyx_ads.CASES,
    "email_sequences": email_sequences.CASES,
    "opus_clip": opus_clip.CASES,
    "darkroom": darkroom.CASES,
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

drumline replaces five in-house systems, each described by a document. Every code block of these is run by a test, on
a machine without GPU, against the adapters of `drumline.adapters` or the folder of `examples/` that does the same
job. This page is written from the tests themselves.

A block is `as written`, or `mended` in one of these ways: `import line`; `stand-in`, models, data and variables that
the document takes for granted, and the name that a shown result is given to be compared; `GPU count`, with the
backend that goes with it; `address or path`; `endless made finite`; `not valid Python`, an `await` outside of a
coroutine or an empty `with`. What needs a GPU or what drumline replaces has beside it what ran instead.

Departures from the documents:

- Python 3.11 and torch 2.11 or newer; torchvision and torchaudio are not used.
- All ranks evaluate and save together, each its part; the documents let the main process do it alone.
- Mixed precision is torch's own, not Apex; GPUs are read through NVML, not GPUtil.
- A batch size stands for one update over everything where the document does not say that it is a GPU's.
- The darkroom's histories come from tabular Q-learning with replay, whose improvement fits into one context, so none
  are thinned out.

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
