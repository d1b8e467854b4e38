"""Vectors depend on their row alone: not on its batch-mates, the padding, or who is filled in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drumline.config.inference import EmbedTask
from drumline.infer.embed import NOT_FINITE, pooled, warn_of_pooling
from drumline.infer.loading import make_predictor
from drumline.infer.records import ERROR, Row
from tests.tiny_models import VOCAB_SIZE, save_llama, save_tokenizer
from tests.unit.infer.tiny_encoders import CPU, answers, config_for, prepared, run, save_encoder, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("bert"), transformers.BertModel)


def embedder(folder: Path, **task: Any) -> Any:
    return make_predictor(config_for(folder, {"kind": "embed", **task}), CPU)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_batch_gives_what_transformers_gives_one_by_one(folder: Path, pooling: str) -> None:
    predictor = embedder(folder, pooling=pooling, normalise=False)
    assert predictor.columns == ("embedding",)
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = texts(9)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        ids = tokenizer(row.values["text"], return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            states = model(input_ids=ids).last_hidden_state[0]
        wanted = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
        assert torch.tensor(answer["embedding"]) == pytest.approx(wanted, abs=1e-5)


def test_a_decoder_is_given_no_mask_and_the_same_vectors(tmp_path: Path) -> None:
    predictor = embedder(save_llama(tmp_path, initializer_range=0.3), pooling="last")
    rows = texts(6)
    together = answers(predictor, rows)
    for row, answer in zip(rows, together, strict=True):
        [alone] = answers(predictor, [row])
        assert answer["embedding"] == pytest.approx(alone["embedding"], abs=1e-5)
    assert together[0] != together[1]


@pytest.mark.parametrize("attention", ["auto", "eager"])
def test_vectors_have_length_one_and_those_that_stay_keep_their_bytes(folder: Path, attention: str) -> None:
    predictor = make_predictor(config_for(folder, {"kind": "embed"}, model={"attention": attention}), CPU)
    rows = prepared(predictor, texts(6))
    width = max(row.length for row in rows)
    whole = run(predictor, rows, width)
    assert torch.tensor([answer["embedding"] for answer in whole]).norm(dim=1) == pytest.approx(torch.ones(6))
    part = run(predictor, [rows[0], None, rows[2], None, None, rows[5]], width)
    assert part == [whole[0], whole[2], whole[5]]


def test_rows_of_one_length_keep_their_bytes_where_others_are_filled_in(folder: Path) -> None:
    predictor = embedder(folder)
    rows = prepared(predictor, [Row(n, {"text": word}) for n, word in enumerate(("ship", "fish", "wide", "ship"))])
    rows = [row for row in rows if row.length == rows[0].length]
    assert len(rows) > 1
    whole = run(predictor, rows, rows[0].length)
    part = run(predictor, [rows[0], *[None] * (len(rows) - 1)], rows[0].length)
    assert part == whole[:1]


def test_rows_that_cannot_be_read_say_why(folder: Path) -> None:
    long = Row(2, {"text": "whale " * 99})
    rows = [Row(0, {"txt": "a"}), Row(1, {"text": ["a"]}), long, Row(3, {}, "line 4: no JSON"), Row(4, {"text": ""})]
    found = embedder(folder).prepare(rows)
    assert found[0] == "the row has no field 'text'"
    assert found[1] == "the row's field 'text' is a list, not text"
    assert "tokens, and the model takes 64" in str(found[2])
    assert found[3] == "line 4: no JSON"
    assert found[4].length == 1
    [cut] = embedder(folder, too_long="cut").prepare([long])
    assert cut.length == 64


def test_a_vector_that_is_not_finite_is_that_rows_error(folder: Path) -> None:
    predictor = embedder(folder)
    rows = prepared(predictor, texts(3))
    table = predictor._body._model.get_input_embeddings().weight
    common = {int(i) for row in rows[1:] for i in row.payload.ids}
    own = next(int(i) for i in rows[0].payload.ids if int(i) not in common)
    table[own] = float("nan")
    found = run(predictor, rows, max(row.length for row in rows))
    assert found[0] == {ERROR: NOT_FINITE}
    assert all(len(answer["embedding"]) == 32 for answer in found[1:])


def test_padding_that_is_not_finite_is_left_out() -> None:
    states = torch.tensor([[[1.0], [3.0], [float("nan")]]])
    mask = torch.tensor([[True, True, False]])
    assert pooled(states, mask, "mean").item() == 2.0
    assert pooled(states, mask, "last").item() == 3.0


def test_of_an_encoder_with_a_decoder_the_encoder_is_taken(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    transformers.T5Model(transformers.T5Config(**sizes)).save_pretrained(tmp_path)
    predictor = embedder(tmp_path)
    rows = texts(5)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        [alone] = answers(predictor, [row])
        assert answer["embedding"] == pytest.approx(alone["embedding"], abs=1e-5)


def test_another_pooling_than_that_of_training_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    warn_of_pooling(EmbedTask(pooling="cls"), tmp_path)
    warn_of_pooling(EmbedTask(), None)
    assert not caplog.messages
    warn_of_pooling(EmbedTask(), tmp_path)
    assert caplog.messages == [f"the model in {tmp_path} was trained with pooling cls; task.pooling is mean"]
    (tmp_path / "1_Pooling" / "config.json").write_text("[")
    warn_of_pooling(EmbedTask(), tmp_path)
    assert "is damaged" in caplog.messages[1]
