"""SmolLM2 chooses labels and scores texts: as each prompt and label alone, and as plain cross-entropy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from drumline.config.inference import ChooseTask, PromptConfig, ScoreTask
from drumline.data.tokenizers import HuggingFaceTokenizer
from drumline.infer.choose import ChoosePredictor, label_ids
from drumline.infer.records import Prepared, Row
from drumline.infer.score import ScorePredictor

pytestmark = pytest.mark.system

TEXTS = [
    "The parliament passed the budget after the ministers had voted on taxes.",
    "The striker scored twice and the team won the final.",
    "Doctors found that the vaccine protects children. <|im_end|>",
    "Go!",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """SmolLM2, which `make assets` fetches."""
    assets = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert assets, "run these tests with: make assets test-system"
    return Path(assets) / "smollm2"


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


@torch.inference_mode()
def log_likelihoods(model: Any, ids: Any) -> Any:
    """Of each token after the first."""
    given = torch.from_numpy(ids)[None]
    logs = torch.log_softmax(model(given).logits[0, :-1].double(), -1)
    return logs.gather(1, given[0, 1:, None])[:, 0].numpy()


def rows_of(predictor: Any) -> list[Prepared]:
    rows: list[Prepared] = predictor.prepare([Row(number, {"text": text}) for number, text in enumerate(TEXTS)])
    return rows


@pytest.mark.parametrize("labels", [[], ["party politics", "sports", "medicine and health", "sports cars"]])
def test_choosing_is_each_label_alone(folder: Path, model: Any, labels: list[str]) -> None:
    tokenizer = HuggingFaceTokenizer(folder)
    task = ChooseTask(prompt=PromptConfig(strategy="topic"), labels=labels, score="mean")
    predictor = ChoosePredictor(model, tokenizer, task)
    rows = rows_of(predictor)
    facts = predictor.survey(rows)
    predictor.settle(facts)
    assert len(facts["prefix"]) > 40
    width = max(row.length for row in rows)
    ids = label_ids(predictor.labels, tokenizer, by_sum=False)
    wanted = [
        [log_likelihoods(model, np.concatenate([row.payload, own]))[-len(own) :].sum() for own in ids] for row in rows
    ]
    np.testing.assert_allclose(predictor.log_likelihoods(rows, width), wanted, atol=1e-4)
    answers = predictor.run(rows, width)
    means = np.array(wanted) / [len(own) for own in ids]
    assert [answer["prediction"] for answer in answers] == [predictor.labels[best] for best in means.argmax(1)]
    assert predictor.run([None, *rows[1:]], width) == answers[1:]


def test_scores_are_a_plain_cross_entropy(folder: Path, model: Any) -> None:
    predictor = ScorePredictor(model, HuggingFaceTokenizer(folder), ScoreTask())
    rows = rows_of(predictor)
    answers = predictor.run(rows, max(row.length for row in rows))
    wanted = [log_likelihoods(model, row.payload) for row in rows]
    for answer, own in zip(answers, wanted, strict=True):
        assert answer["log_likelihood"] == pytest.approx(own.sum(), abs=1e-3)
        assert answer["perplexity"] == pytest.approx(np.exp(-own.mean()), rel=1e-4)
