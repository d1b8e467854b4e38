"""A real model's answers: the engines and the shared beginning give what transformers gives one row at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drumline.config.inference import GenerateTask, PromptConfig
from drumline.data.tokenizers import HuggingFaceTokenizer
from drumline.infer.generate import GeneratePredictor
from drumline.infer.prompts import PromptMaker
from drumline.infer.records import Answer, Prepared, Row

pytestmark = pytest.mark.system

TOKENS = 16
PROMPT = PromptConfig(
    system="You are a careful librarian. You answer in few words and you never say more than you were asked for. "
    "Where a question makes no sense you say so.",
    prompt="In a word or two: {question}",
)
QUESTIONS = (
    "What colour is the sky on a clear day?",
    "Which animal says moo?",
    "Two and two?",
    "Name the capital of France, and then the river that runs through it, and then the sea that this river ends in.",
    "Hm?",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    """SmolLM2, which `make assets` fetches."""
    assets = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert assets, "run these tests with: make assets test-system"
    return Path(assets) / "smollm2"


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(folder)


@pytest.fixture(scope="module")
def prompts(tokenizer: HuggingFaceTokenizer, folder: Path) -> PromptMaker:
    return PromptMaker(PROMPT, tokenizer, folder)


ROWS = [Row(number, {"question": question}) for number, question in enumerate(QUESTIONS)]


def predictor(model: Any, tokenizer: HuggingFaceTokenizer, prompts: PromptMaker, **task: Any) -> GeneratePredictor:
    settings = GenerateTask(**{"max_new_tokens": TOKENS, **task})
    return GeneratePredictor(model, tokenizer, settings, prompts, [model.generation_config.eos_token_id], seed=1)


def answers_of(own: GeneratePredictor, *, with_filler: bool = False) -> list[Answer]:
    """In the rows' order, from one batch with the longest first, as they are planned."""
    prepared = [each for each in own.prepare(ROWS) if isinstance(each, Prepared)]
    assert len(prepared) == len(ROWS)
    own.settle(own.survey(prepared))
    ordered = sorted(prepared, key=lambda each: -each.length)
    rows: list[Prepared | None] = [*ordered]
    if with_filler:
        rows[2] = None
    found = dict(zip([row.number for row in rows if row], own.run(rows, ordered[0].length), strict=True))
    return [found.get(row.number, {}) for row in ROWS]


@pytest.fixture(scope="module")
def expected(model: Any, tokenizer: HuggingFaceTokenizer, prompts: PromptMaker) -> list[Answer]:
    """model.generate, one row at a time."""
    end, made = model.generation_config.eos_token_id, []
    for row in ROWS:
        given = torch.from_numpy(prompts.ids(row))[None]
        mask = torch.ones_like(given)
        found = model.generate(given, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=end)
        ids = found[0, given.shape[1] :].tolist()
        finish = "end" if end in ids else "length"
        ids = [each for each in ids if each != end]
        made.append({"answer": tokenizer.decode(ids), "finish": finish, "new_tokens": len(ids)})
    return made


@pytest.mark.parametrize("engine", ["padded", "static", "continuous"])
def test_engines_give_what_transformers_gives_one_by_one(
    model: Any, tokenizer: HuggingFaceTokenizer, prompts: PromptMaker, expected: list[Answer], engine: str
) -> None:
    own = predictor(model, tokenizer, prompts, engine=engine)
    assert answers_of(own) == expected
    assert own.engine == engine
    assert {answer["finish"] for answer in expected} == {"end", "length"}


def test_the_prompts_share_a_beginning(model: Any, tokenizer: HuggingFaceTokenizer, prompts: PromptMaker) -> None:
    own = predictor(model, tokenizer, prompts)
    prefix = own.survey([each for each in own.prepare(ROWS) if isinstance(each, Prepared)])["prefix"]
    assert len(prefix) > 40
    assert "never say more" in tokenizer.decode(prefix) and "In a word or two" in tokenizer.decode(prefix)


def test_draws_and_stop_texts_are_the_rows_own(
    model: Any, tokenizer: HuggingFaceTokenizer, prompts: PromptMaker
) -> None:
    own = predictor(
        model, tokenizer, prompts, temperature=0.9, top_p=0.9, stop=["."], engine="padded", max_new_tokens=9
    )
    whole, part = answers_of(own), answers_of(own, with_filler=True)
    assert sum(not answer for answer in part) == 1
    assert all(some == answer for some, answer in zip(part, whole, strict=True) if some)
    assert all("." not in answer["answer"] for answer in whole)
    assert any(answer["finish"] == "stop" for answer in whole)
