from __future__ import annotations

import pytest
import torch

from drumline.tasks.by_class import MOST_CLASSES, f1_by_class, f1_by_label
from drumline.tasks.classification import Classification
from drumline.tasks.cross_entropy import exact_matches

NAMES = ("red", "green", "blue", "never")
SCORES = torch.eye(4)[torch.tensor([0, 0, 1, 2, 2, 1])]
LABELS = torch.tensor([0, 1, 1, 2, -100, 0])


@torch.no_grad()
def test_twice_the_right_ones_over_true_and_predicted() -> None:
    found = {name: (int(value), int(weight)) for name, (value, weight) in f1_by_class(SCORES, LABELS, NAMES).items()}
    assert found == {"f1/red": (2, 4), "f1/green": (2, 4), "f1/blue": (2, 2), "f1/never": (0, 0)}


@torch.no_grad()
def test_of_labels_each_column_by_itself() -> None:
    present = torch.tensor([[True, False], [True, True], [False, False]])
    scores = torch.tensor([[1.0, -1.0], [-1.0, 0.1], [1.0, 0.3]])  # probabilities 0.73, 0.27, 0.52, 0.57
    found = f1_by_label(scores, present, 0.55, ("a", "b"))
    assert {name: (int(value), int(weight)) for name, (value, weight) in found.items()} == {
        "f1/a": (2, 4),
        "f1/b": (0, 2),
    }


def test_training_names_or_too_many_classes_pay_for_none() -> None:
    assert f1_by_class(SCORES, LABELS, NAMES) == {}
    with torch.no_grad():
        assert f1_by_class(SCORES, LABELS, ()) == {}
        many = [str(number) for number in range(MOST_CLASSES + 1)]
        assert f1_by_class(torch.zeros(2, len(many)), torch.zeros(2, dtype=torch.int64), many) == {}
        loss = Classification(4, names=NAMES).loss(SCORES, {"labels": LABELS})
    assert list(loss.metrics) == [f"f1/{name}" for name in NAMES]
    assert Classification(4, names=NAMES).loss(SCORES, {"labels": LABELS}).metrics == {}


CORRECT = torch.tensor([[True, True, False, True, False, True], [True, True, True, False, True, True]])
COUNTED = torch.tensor([[-100, 7, -100, 7, -100, -100], [7, 7, 7, 7, -100, 7]])


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (None, (1, 2)),
        # Texts of 3, 2, 1 tokens, the last one without labels; of 3, 1, 2 tokens, the middle one wrong.
        (torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 0, 0, 1]]), (4, 5)),
        # The first row does not begin with a 0, and its text must not run on from another row's.
        (torch.tensor([[5, 6, 7, 8, 9, 10], [3, 4, 5, 6, 0, 1]]), (2, 3)),
    ],
)
def test_exact_matches_by_rows_and_by_packed_texts(positions: torch.Tensor | None, expected: tuple[int, int]) -> None:
    right, texts = exact_matches(CORRECT & (COUNTED != -100), COUNTED, positions)
    assert (int(right), int(texts)) == expected
