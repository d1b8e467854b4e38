from __future__ import annotations

from typing import Any

import pytest

from drumline.infer.summary import Summary


def summarised(pairs: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    summary = Summary("truth")
    for truth, answer in pairs:
        summary.add({"truth": truth}, answer, None)
    return summary.as_json()


def test_errors_that_differ_in_numbers_are_one_kind() -> None:
    summary = Summary(None)
    for number in (100_001, 99_000):
        summary.add({}, {}, f"it has {number:,} tokens, and the model takes 8,192\nmore")
    summary.add({}, {"answer": "x"}, None)
    found = summary.as_json()
    assert found["errors"] == {"it has # tokens, and the model takes #": 2}
    assert (found["num_rows"], found["num_failed"]) == (3, 2)
    assert "labels" not in found


def test_confusion_and_f1_by_hand() -> None:
    pairs = [("cat", "cat")] * 3 + [("cat", "dog")] + [("dog", "dog")] * 2 + [("dog", "cat")] * 2 + [(None, "cat")]
    found = summarised([(truth, {"prediction": prediction}) for truth, prediction in pairs])
    assert found["labels"] == {"cat": 6, "dog": 3}
    assert found["confusion"] == {"cat": {"cat": 3, "dog": 1}, "dog": {"cat": 2, "dog": 2}}
    assert found["accuracy"] == pytest.approx(5 / 8)
    cat, dog = found["f1"]["classes"]["cat"], found["f1"]["classes"]["dog"]
    assert (cat["precision"], cat["recall"], cat["num_rows"]) == (pytest.approx(3 / 5), pytest.approx(3 / 4), 4)
    assert cat["f1"] == pytest.approx(2 / 3)
    assert dog["f1"] == pytest.approx(4 / 7)
    assert found["f1"]["macro"] == pytest.approx((2 / 3 + 4 / 7) / 2)
    assert found["f1"]["micro"] == pytest.approx(5 / 8)


def test_labels_are_compared_as_text() -> None:
    found = summarised([(1, {"prediction": "1"}), ("true", {"prediction": True}), ("0", {"prediction": 0})])
    assert found["accuracy"] == 1.0


def test_a_label_that_was_never_right_counts_as_zero() -> None:
    found = summarised([("a", {"prediction": "a"}), ("a", {"prediction": "b"})])
    assert found["f1"]["classes"]["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "num_rows": 0}


def test_several_labels_a_row_are_compared_as_sets() -> None:
    rows = [(["a", "b"], ["a"]), (["b"], ["b", "c"]), ([], [])]
    found = summarised([(truth, {"predictions": labels, "probabilities": {}}) for truth, labels in rows])
    assert "confusion" not in found
    f1 = {label: scores["f1"] for label, scores in found["f1"]["classes"].items()}
    assert f1 == {"a": 1.0, "b": pytest.approx(2 / 3), "c": 0.0}
    assert found["labels"] == {"a": 1, "b": 1, "c": 1}


def test_a_label_a_word_is_compared_word_by_word() -> None:
    rows = [(["N", "V"], ["N", "N"]), (["N"], ["N", "V"])]
    found = summarised([(truth, {"predictions": labels}) for truth, labels in rows])
    assert found["confusion"] == {"N": {"N": 1}, "V": {"N": 1}}


def test_numbers_are_no_labels_and_too_many_are_left_out() -> None:
    assert "labels" not in summarised([(0.5, {"prediction": 0.25})])
    assert "labels" not in summarised([(None, {"prediction": number}) for number in range(1001)])
