"""Likelihoods of texts: equal to a plain cross-entropy, whatever the batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drumline.config.inference import ScoreTask
from drumline.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer
from drumline.errors import ConfigError
from drumline.infer.records import ERROR, Prepared, Row
from drumline.infer.score import ScorePredictor
from drumline.models.decoder import Decoder, DecoderShape
from tests.tiny_models import VOCAB_SIZE, save_bert, save_tokenizer

TEXTS = ["Call me Ishmael.", "Some years ago, never mind how long precisely<|im_end|>", "the sea", "\u00e9\U0001f600"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path)
    return HuggingFaceTokenizer(path)


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
        **more,
    )
    return transformers.LlamaForCausalLM(config).eval()


def decoder() -> Any:
    torch.manual_seed(0)
    return Decoder(DecoderShape("gpt2", 2, 4, 4, 32, 64, 0.0, True, VOCAB_SIZE, 64)).eval()


def prepared(predictor: ScorePredictor, texts: list[str]) -> list[Prepared]:
    found = predictor.prepare([Row(number, {"text": text}) for number, text in enumerate(texts)])
    return [each for each in found if isinstance(each, Prepared)]


@torch.inference_mode()
def plain(model: Any, ids: Any) -> float:
    given = torch.from_numpy(ids)[None]
    logits = model(given)
    logits = logits if isinstance(logits, torch.Tensor) else logits.logits
    return -float(torch.nn.functional.cross_entropy(logits[0, :-1].double(), given[0, 1:], reduction="sum"))


@pytest.mark.parametrize("make", [llama, decoder])
def test_scores_are_a_plain_cross_entropy(
    tokenizer: HuggingFaceTokenizer, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drumline.models.chunked_loss.CHUNK_LOGITS", 10 * VOCAB_SIZE)
    model = make()
    predictor = ScorePredictor(model, tokenizer, ScoreTask())
    predictor.settle(predictor.survey([]))
    rows = prepared(predictor, TEXTS)
    assert [len(row.payload) for row in rows] == [len(tokenizer.encode(text)) for text in TEXTS]
    answers = predictor.run(rows, 60)
    for row, answer in zip(rows, answers, strict=True):
        assert tuple(answer) == predictor.columns
        assert answer["num_tokens"] == row.length - 1
        assert answer["log_likelihood"] == pytest.approx(plain(model, row.payload), abs=1e-4)
        assert answer["perplexity"] == pytest.approx(math.exp(-answer["log_likelihood"] / (row.length - 1)), rel=1e-12)


def test_a_rows_answer_is_the_same_bytes_whoever_else_is_in_the_batch(tokenizer: HuggingFaceTokenizer) -> None:
    predictor = ScorePredictor(llama(), tokenizer, ScoreTask())
    rows = prepared(predictor, TEXTS)
    width = max(row.length for row in rows)
    whole = predictor.run(rows, width)
    for number in range(len(rows)):
        assert predictor.run([row if row.number == number else None for row in rows], width) == [whole[number]]


def test_one_token_has_nothing_before_it() -> None:
    predictor = ScorePredictor(llama(), ByteTokenizer(), ScoreTask())
    rows = prepared(predictor, ["a"])
    assert predictor.run(rows, 1) == [{"log_likelihood": 0.0, "perplexity": None, "num_tokens": 0}]
    assert predictor.run([None, *rows], 4) == [{"log_likelihood": 0.0, "perplexity": None, "num_tokens": 0}]


def test_a_token_that_begins_texts_stands_before_the_first(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    save_tokenizer(tmp_path)
    whole = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    start = whole.token_to_id("<|im_start|>")
    whole.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[("<|im_start|>", start), ("<|im_end|>", whole.token_to_id("<|im_end|>"))],
    )
    whole.save(str(tmp_path / "tokenizer.json"))
    tokenizer, model = HuggingFaceTokenizer(tmp_path), llama()
    predictor = ScorePredictor(model, tokenizer, ScoreTask())
    rows = prepared(predictor, ["a", "<|im_start|>a"])
    assert [row.payload.tolist() for row in rows] == [[start, *tokenizer.encode("a")]] * 2
    answers = predictor.run(rows, 2)
    assert answers[0] == answers[1]
    assert answers[0]["num_tokens"] == 1
    assert answers[0]["log_likelihood"] == pytest.approx(plain(model, rows[0].payload), abs=1e-5)


def test_long_rows_are_errors_or_cut() -> None:
    rows = [Row(0, {"text": "a" * 65}), Row(1, {"text": ""}), Row(2, {"body": "a"}), Row(3, {}, "line 4: no JSON")]
    found = ScorePredictor(llama(), ByteTokenizer(), ScoreTask()).prepare(rows)
    assert found == [
        "it has 65 tokens, and the model takes 64",
        "the text is empty",
        "the row has no field 'text'; it has 'body'",
        "line 4: no JSON",
    ]
    cut = ScorePredictor(llama(), ByteTokenizer(), ScoreTask(context=5, too_long="cut")).prepare(rows)[0]
    assert isinstance(cut, Prepared) and cut.length == len(cut.payload) == 5


def test_a_context_without_positions_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.context is 65, and the model has positions for 64 tokens"):
        ScorePredictor(decoder(), ByteTokenizer(), ScoreTask(context=65))
    longer = ScorePredictor(llama(), ByteTokenizer(), ScoreTask(context=65))  # rotary positions go on
    assert prepared(longer, ["a" * 65])[0].length == 65


def test_a_likelihood_that_is_no_number_is_an_error() -> None:
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    predictor = ScorePredictor(model, ByteTokenizer(), ScoreTask())
    assert [list(answer) for answer in predictor.run(prepared(predictor, ["ab"]), 2)] == [[ERROR]]


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    model = transformers.AutoModel.from_pretrained(save_bert(tmp_path))
    with pytest.raises(ConfigError, match="causal language model"):
        ScorePredictor(model, ByteTokenizer(), ScoreTask())
