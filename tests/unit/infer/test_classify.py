"""Classes, several of them, and numbers, of texts and pairs, with the names that the model's folder has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drumline.errors import ConfigError
from drumline.infer.classify import Labels, labels_of
from drumline.infer.embed import NOT_FINITE
from drumline.infer.loading import make_predictor
from drumline.infer.records import ERROR, Row
from tests.tiny_models import save_llama
from tests.unit.infer.tiny_encoders import CPU, answers, config_for, prepared, save_encoder, texts

NAMES = ("fair", "rough", "stormy")


def classifier(folder: Path, rows: dict[str, Any] | None = None, **task: Any) -> Any:
    sections = {"rows": {"files": ["x.jsonl"], **(rows or {})}}
    return make_predictor(config_for(folder, {"kind": "classify", **task}, **sections), CPU)


def save(folder: Path, names: tuple[str, ...] = NAMES, **settings: Any) -> Path:
    return save_encoder(folder, transformers.BertForSequenceClassification, names, **settings)


def logits_of(folder: Path, row: Row) -> torch.Tensor:
    """What transformers itself says to one row."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(row.values["text"], return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        return torch.as_tensor(model(input_ids=ids).logits[0])


def test_one_class_a_row_as_transformers_has_it(tmp_path: Path) -> None:
    predictor = classifier(save(tmp_path))
    assert predictor.columns == ("prediction", "probabilities")
    rows = texts(7)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        wanted = logits_of(tmp_path, row).softmax(-1)
        assert answer["prediction"] == NAMES[int(wanted.argmax())]
        assert answer["probabilities"] == pytest.approx(dict(zip(NAMES, wanted.tolist(), strict=True)), abs=1e-5)


def test_several_classes_a_row_by_the_threshold(tmp_path: Path) -> None:
    save(tmp_path, problem_type="multi_label_classification")
    predictor = classifier(tmp_path, threshold=0.3)
    assert predictor.columns == ("predictions", "probabilities")
    rows = texts(5)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        shares = logits_of(tmp_path, row).sigmoid().tolist()
        assert answer["predictions"] == [name for name, share in zip(NAMES, shares, strict=True) if share >= 0.3]


def test_a_head_with_one_output_gives_a_number(tmp_path: Path) -> None:
    predictor = classifier(save(tmp_path, names=("score",)))
    assert predictor.columns == ("prediction",)
    rows = texts(3)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        assert answer == {"prediction": pytest.approx(logits_of(tmp_path, row).item(), abs=1e-5)}


def test_a_pair_is_one_row_of_which_a_batch_changes_nothing(tmp_path: Path) -> None:
    predictor = classifier(save(tmp_path), rows={"text_pair": "claim"})
    rows = [Row(row.number, {**row.values, "claim": f"a fish {row.number}"}) for row in texts(5)]
    together = answers(predictor, rows)
    for row, answer in zip(rows, together, strict=True):
        [alone] = answers(predictor, [row])
        assert answer["probabilities"] == pytest.approx(alone["probabilities"], abs=1e-5)
    assert predictor.prepare([Row(0, {"text": "a"})]) == ["the row has no field 'claim'"]
    swapped = Row(0, {"text": rows[3].values["claim"], "claim": rows[3].values["text"]})
    [other] = answers(predictor, [swapped])
    assert other["probabilities"] != pytest.approx(together[3]["probabilities"], abs=1e-3)


def test_a_decoder_with_a_classifier_looks_at_its_last_token(tmp_path: Path) -> None:
    save_llama(tmp_path, initializer_range=0.3)
    config = transformers.AutoConfig.from_pretrained(tmp_path, num_labels=2)
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    predictor = classifier(tmp_path)
    rows = texts(5)
    for row, answer in zip(rows, answers(predictor, rows), strict=True):
        wanted = logits_of(tmp_path, row).softmax(-1).tolist()
        assert list(answer["probabilities"].values()) == pytest.approx(wanted, abs=1e-5)


def test_who_is_filled_in_for_changes_no_byte(tmp_path: Path) -> None:
    predictor = classifier(save(tmp_path))
    rows = prepared(predictor, texts(4))
    width = max(row.length for row in rows)
    assert predictor.run([None, rows[1], None, None], width) == predictor.run(rows, width)[1:2]


def test_what_is_not_finite_is_that_rows_error() -> None:
    found = Labels(("a", "b"), "one").answers(torch.tensor([[0.0, float("inf")], [0.0, 1.0]]))
    assert found[0] == {ERROR: NOT_FINITE}
    assert found[1]["prediction"] == "b"


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="several classes that are named a"):
        labels_of(transformers.BertConfig(id2label={0: "a", 1: "a"}, label2id={"a": 0}))


def test_outputs_that_nobody_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="gives 3 outputs a row"):
        Labels(("a", "b"), "one").answers(torch.zeros(1, 3))
