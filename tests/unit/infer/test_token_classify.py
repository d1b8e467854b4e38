"""A class a word: that of its first token, for texts and for lists of words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from drumline.infer.loading import make_predictor
from drumline.infer.records import Row
from drumline.infer.token_classify import first_places, words_of
from tests.unit.infer.tiny_encoders import CPU, answers, config_for, prepared, save_encoder, texts

NAMES = ("O", "SHIP", "SEA")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("bert"), transformers.BertForTokenClassification, NAMES)


def tagger(folder: Path, **task: Any) -> Any:
    return make_predictor(config_for(folder, {"kind": "token_classify", **task}), CPU)


def test_each_word_gets_its_first_tokens_class(folder: Path) -> None:
    predictor = tagger(folder)
    assert predictor.columns == ("predictions",)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = texts(6)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        words = row.values["text"].split()
        pieces = [
            tokenizer((" " if n else "") + word, add_special_tokens=False)["input_ids"] for n, word in enumerate(words)
        ]
        ids = torch.tensor([[i for piece in pieces for i in piece]])
        with torch.no_grad():
            best = model(input_ids=ids).logits[0].argmax(-1).tolist()
        firsts = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
        assert answer["predictions"] == [NAMES[best[place]] for place in firsts]


def test_a_list_of_words_is_taken_as_it_is(folder: Path) -> None:
    predictor = tagger(folder)
    listed, text = answers(predictor, [Row(0, {"text": ["the", "whale"]}), Row(1, {"text": "the  whale\n"})])
    assert listed == text
    [odd] = answers(predictor, [Row(0, {"text": ["the", "", "a b"]})])
    assert len(odd["predictions"]) == 3
    assert odd["predictions"][1] is None


def test_rows_that_cannot_be_tagged_say_why_and_cut_words_have_no_class(folder: Path) -> None:
    long = Row(2, {"text": "whale " * 60})
    found = tagger(folder).prepare([Row(0, {}), Row(1, {"text": {"a": 1}}), long])
    assert found[:2] == ["the row has no field 'text'", "the row's field 'text' is neither a text nor a list of words"]
    assert "the model takes 64" in str(found[2])
    [cut] = answers(tagger(folder, too_long="cut", context=8), [long])
    assert len(cut["predictions"]) == 60
    assert cut["predictions"][0] is not None
    assert cut["predictions"][-1] is None


def test_who_is_filled_in_for_changes_nothing_and_no_words_have_no_classes(folder: Path) -> None:
    predictor = tagger(folder)
    rows = prepared(predictor, [*texts(3), Row(3, {"text": "  "})])
    width = max(row.length for row in rows)
    whole = predictor.run(rows, width)
    assert whole[3] == {"predictions": []}
    assert predictor.run([None, None, rows[2], None], width) == whole[2:3]


def test_words_and_their_places() -> None:
    assert words_of("a  b\tc") == ["a", "b", "c"]
    assert words_of(["x", 1]) == ["x", "1"]
    assert words_of(None) is None
    assert words_of(["x", float("nan")]) is None
    assert first_places([None, 0, 0, 2], 3).tolist() == [1, -1, 3]
