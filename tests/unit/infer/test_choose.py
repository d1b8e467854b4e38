"""Labels chosen by likelihood: equal to each prompt and label alone through the model, whatever the batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from drumline.config.inference import ChooseTask, PromptConfig
from drumline.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer
from drumline.errors import ConfigError
from drumline.infer.choose import ChoosePredictor, label_ids
from drumline.infer.label_tree import branches_of
from drumline.infer.records import ERROR, Prepared, Row
from drumline.models.decoder import Decoder, DecoderShape
from tests.tiny_models import VOCAB_SIZE, save_tokenizer

LABELS = ["whale", "whaling ship", "sea", "s", "ship of the sea"]
TEXTS = ["Call me Ishmael.", "Some years ago, never mind how long precisely, having little money", "x", "the sea"]
SHAPE: dict[str, Any] = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 8},
}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}


def llama(**more: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, **more))


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=512)
    )


def gemma3() -> Any:
    config = transformers.Gemma3TextConfig(
        **SHAPE, sliding_window=6, layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=3.0
    )
    return transformers.Gemma3ForCausalLM(config)


def gpt_oss() -> Any:
    config = transformers.GptOssConfig(
        **SHAPE, **MOE, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    )
    return transformers.GptOssForCausalLM(config)


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE, sliding_window=6))


def bloom() -> Any:
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4)
    )


def decoder() -> Any:
    return Decoder(DecoderShape("llama", 2, 4, 2, 32, 64, 0.0, True, VOCAB_SIZE, 512))


def ready(make: Any) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    # Fresh weights say of all tokens nearly the same.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path)
    return HuggingFaceTokenizer(path)


def task(**settings: Any) -> ChooseTask:
    prompt = PromptConfig(prompt=settings.pop("prompt", "What is {text} about? "), raw=True)
    return ChooseTask(prompt=prompt, **{"labels": LABELS, "score": "mean", **settings})


def rows_of(predictor: ChoosePredictor, texts: Sequence[str]) -> list[Prepared]:
    prepared = predictor.prepare([Row(number, {"text": text}) for number, text in enumerate(texts)])
    return [each for each in prepared if isinstance(each, Prepared)]


def settled(model: Any, tokenizer: Any, **settings: Any) -> tuple[ChoosePredictor, list[Prepared]]:
    predictor = ChoosePredictor(model, tokenizer, task(**settings))
    rows = rows_of(predictor, TEXTS)
    predictor.settle(predictor.survey(rows))
    return predictor, rows


def width_of(rows: Sequence[Prepared]) -> int:
    return max(row.length for row in rows)


@torch.inference_mode()
def alone(model: Any, rows: Sequence[Prepared], labels: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Each prompt with each label by itself through the model."""
    table = np.zeros((len(rows), len(labels)))
    for row in rows:
        for number, label in enumerate(labels):
            ids = torch.from_numpy(np.concatenate([row.payload, label]))[None]
            logits = model(ids)
            logits = logits if isinstance(logits, torch.Tensor) else logits.logits
            logs = torch.log_softmax(logits[0, :-1].double(), -1)
            table[row.number, number] = logs.gather(1, ids[0, 1:, None])[-len(label) :].sum()
    return table


LONG = "What, of all the things that a book can speak of, is this part of the book about: {text}? "


@pytest.mark.parametrize("make", [llama, gpt2, gemma3, gpt_oss, mistral, bloom, decoder])
@pytest.mark.parametrize("prompt", ["What is {text} about? ", LONG])
def test_likelihoods_are_those_of_each_label_alone(tokenizer: HuggingFaceTokenizer, make: Any, prompt: str) -> None:
    model = ready(make)
    predictor, rows = settled(model, tokenizer, prompt=prompt)
    wanted = alone(model, rows, label_ids(LABELS, tokenizer, by_sum=False))
    assert np.ptp(wanted) > 1
    assert len(predictor.survey(rows)["prefix"]) == 0 or prompt == LONG
    np.testing.assert_allclose(predictor.log_likelihoods(rows, width_of(rows)), wanted, atol=1e-5, rtol=1e-6)
    # As it is before anything is agreed on.
    fresh = ChoosePredictor(model, tokenizer, task(prompt=prompt))
    np.testing.assert_allclose(fresh.log_likelihoods(rows, width_of(rows) + 3), wanted, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "tree"), [(llama, True), (gpt2, True), (gemma3, True), (gpt_oss, True), (mistral, True), (bloom, False)]
)
def test_prompts_are_computed_once_where_the_model_allows_it(
    tokenizer: HuggingFaceTokenizer, make: Any, tree: bool
) -> None:
    predictor, rows = settled(ready(make), tokenizer, prompt=LONG)
    assert predictor._likelihoods.is_tree is tree
    assert (len(predictor.survey(rows)["prefix"]) > 32) is tree


def test_a_model_that_takes_no_tree_after_all_gets_labels_one_by_one(
    tokenizer: HuggingFaceTokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = ready(llama)
    assert settled(model, tokenizer)[0]._likelihoods.is_tree
    forward = type(model.model).forward

    @functools.wraps(forward)
    def blind(self: Any, *args: Any, **named: Any) -> Any:
        return forward(self, *args, **{**named, "attention_mask": None})

    monkeypatch.setattr(type(model.model), "forward", blind)
    predictor, rows = settled(model, tokenizer)
    assert not predictor._likelihoods.is_tree
    assert "one by one" in caplog.text
    found = predictor.log_likelihoods(rows, width_of(rows))
    np.testing.assert_allclose(found, alone(model, rows, label_ids(LABELS, tokenizer, by_sum=False)), atol=1e-5)


@pytest.mark.parametrize("make", [llama, gpt_oss, bloom])
def test_a_rows_answer_is_the_same_bytes_whoever_else_is_in_the_batch(
    tokenizer: HuggingFaceTokenizer, make: Any
) -> None:
    predictor, rows = settled(ready(make), tokenizer, prompt=LONG)
    whole = predictor.run(rows, width_of(rows))
    assert predictor.run(rows, width_of(rows)) == whole
    for number in range(len(rows)):
        only: list[Prepared | None] = [row if row.number == number else None for row in rows]
        if make is not gpt_oss:  # whose experts compute on rows of all the batch together
            assert predictor.run(only, width_of(rows)) == [whole[number]]
        assert predictor.run(only, width_of(rows))[0]["prediction"] == whole[number]["prediction"]


def test_rows_without_the_shared_prefix_go_on_their_own(tokenizer: HuggingFaceTokenizer) -> None:
    model = ready(llama)
    predictor, rows = settled(model, tokenizer, prompt=LONG)
    other = Prepared(4, 9, 9, np.arange(10, 19))
    mixed = [*rows, other]
    wanted = alone(model, mixed, label_ids(LABELS, tokenizer, by_sum=False))
    found = predictor.log_likelihoods(mixed, width_of(rows))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    only: list[Prepared | None] = [*rows, None]
    assert np.array_equal(predictor.log_likelihoods(only, width_of(rows))[:4], found[:4])


def test_answers_are_the_softmax_over_the_labels(tokenizer: HuggingFaceTokenizer) -> None:
    model = ready(llama)
    labels = ["whale", "ship", "money in my purse"]
    ids = label_ids(labels, tokenizer, by_sum=True)
    for score in ("sum", "mean"):
        predictor, rows = settled(model, tokenizer, score=score, labels=labels)
        assert predictor.columns == ("prediction", "probabilities")
        answers = predictor.run(rows, width_of(rows))
        scores = alone(model, rows, ids) / ([len(each) for each in ids] if score == "mean" else 1)
        for answer, own in zip(answers, scores, strict=True):
            shares = np.exp(own) / np.exp(own).sum()
            assert list(answer["probabilities"]) == labels
            np.testing.assert_allclose(list(answer["probabilities"].values()), shares, atol=1e-5)
            assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-12)
            assert answer["prediction"] == labels[int(own.argmax())]


def test_labels_as_likely_as_each_other_give_the_first(tokenizer: HuggingFaceTokenizer) -> None:
    model = ready(llama)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    predictor, rows = settled(model, tokenizer, labels=["money", "whale", "ship"])
    assert {answer["prediction"] for answer in predictor.run(rows, width_of(rows))} == {"money"}


def test_likelihoods_that_are_no_numbers_are_an_error(tokenizer: HuggingFaceTokenizer) -> None:
    model = ready(llama)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    predictor = ChoosePredictor(model, tokenizer, task())
    rows = rows_of(predictor, TEXTS)
    assert [list(answer) for answer in predictor.run(rows, width_of(rows))] == [[ERROR]] * 4


def test_many_labels_go_in_parts(tokenizer: HuggingFaceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(llama)
    labels = [f"{word} {number}" for word in ("the whale", "the ship", "money") for number in range(4)]
    ids = label_ids(labels, tokenizer, by_sum=True)
    parts = branches_of(ids, 8)
    assert len(parts) > 1
    assert sorted(number for part in parts for number in part.labels) == list(range(12))
    assert sum(len(part.tokens) for part in parts) < sum(len(each) - 1 for each in ids)
    monkeypatch.setattr("drumline.infer.label_likelihoods.branches_of", lambda found: branches_of(found, 8))
    predictor, rows = settled(model, tokenizer, labels=labels)
    assert predictor._likelihoods.is_tree
    np.testing.assert_allclose(predictor.log_likelihoods(rows, width_of(rows)), alone(model, rows, ids), atol=1e-5)


def test_a_tree_has_each_beginning_once() -> None:
    (part,) = branches_of([np.array([1, 2, 3]), np.array([1, 2, 4]), np.array([5]), np.array([1, 9])])
    assert part.tokens.tolist() == [1, 2]
    assert part.depths.tolist() == [0, 1]
    assert part.sees.tolist() == [[True, False], [True, True]]
    assert [sorted(line) for line in part.wanted.tolist()] == [[1, 5], [2, 9], [3, 4]]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([], "two labels or more"),
        (["yes"], "two labels or more"),
        (["yes", "no", "yes"], "'yes' twice"),
        (["yes", ""], "makes nothing"),
        (["hate", "hate speech"], "begins with 'hate'"),
    ],
)
def test_labels_of_which_one_could_never_win_are_refused(labels: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        label_ids(labels, ByteTokenizer(), by_sum=True)


def test_rows_that_cannot_be_asked_keep_their_problem(tokenizer: HuggingFaceTokenizer) -> None:
    predictor = ChoosePredictor(ready(llama), tokenizer, task())
    rows = [Row(0, {"body": "a"}), Row(1, {}, "line 2: no JSON"), Row(2, {"text": "z " * 600}), Row(3, {"text": "a"})]
    missing, unread, long, good = predictor.prepare(rows)
    assert missing == "the row has no field 'text'; it has 'body'"
    assert unread == "line 2: no JSON"
    assert isinstance(long, str) and long.endswith("tokens with its label, and the model takes 512")
    assert isinstance(good, Prepared) and good.size > good.length == len(good.payload)


def test_a_model_that_reads_both_ways_is_refused(tokenizer: HuggingFaceTokenizer) -> None:
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    with pytest.raises(ConfigError, match="causal language model"):
        ChoosePredictor(transformers.BertForMaskedLM(config), tokenizer, task())


def test_labels_come_from_the_strategy(tokenizer: HuggingFaceTokenizer, tmp_path: Path) -> None:
    chosen = ChooseTask(prompt=PromptConfig(strategy="sentiment"))
    assert ChoosePredictor(ready(llama), tokenizer, chosen).labels == ("positive", "negative", "neutral")


def test_a_label_behind_a_prompt_gets_no_space_that_texts_begin_with(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<unk>", "\n", "\u2581", "yes", "no", "\u2581yes", "\u2581no"]
    whole = Tokenizer(models.Unigram([(piece, -float(number)) for number, piece in enumerate(pieces)], unk_id=0))
    whole.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    whole.decoder = decoders.Metaspace(prepend_scheme="first")
    whole.save(str(tmp_path / "tokenizer.json"))
    tokenizer = HuggingFaceTokenizer(tmp_path)
    assert tokenizer.encode("yes").tolist() == [5]
    assert [ids.tolist() for ids in label_ids(["yes", "no", " yes"], tokenizer, by_sum=True)] == [[3], [4], [5]]


def test_a_prefix_that_spares_little_is_left_alone(tokenizer: HuggingFaceTokenizer) -> None:
    predictor = ChoosePredictor(ready(llama), tokenizer, task(prompt=LONG + "{end}"))
    for end, found in (("x", True), ("the whale and the sea. " * 36, False)):
        prepared = predictor.prepare([Row(number, {"text": text, "end": end}) for number, text in enumerate(TEXTS)])
        rows = [each for each in prepared if isinstance(each, Prepared)]
        assert len(rows) == len(TEXTS)
        assert bool(predictor.survey(rows)["prefix"]) is found


def test_a_model_with_little_room_is_verified_within_it(tokenizer: HuggingFaceTokenizer) -> None:
    config = transformers.GPT2Config(vocab_size=VOCAB_SIZE, n_embd=32, n_layer=1, n_head=4, n_positions=14)
    model = ready(lambda: transformers.GPT2LMHeadModel(config))
    predictor = ChoosePredictor(model, tokenizer, task(prompt="{text}"))
    rows = rows_of(predictor, ["x", "sea"])
    predictor.settle(predictor.survey(rows))
    assert predictor._likelihoods.is_tree
    wanted = alone(model, rows, label_ids(LABELS, tokenizer, by_sum=False))
    np.testing.assert_allclose(predictor.log_likelihoods(rows, width_of(rows)), wanted, atol=1e-5)
