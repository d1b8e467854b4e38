from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from drumline.errors import ConfigError, DataError
from drumline.tasks.batches import call_model, check_shape, has_labels, labels_of, scores_of

X, Y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])


class ByName(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@pytest.mark.parametrize(
    ("batch", "args", "names"),
    [
        ({"x": X, "labels": Y}, 0, ["x"]),
        ({"x": X}, 0, ["x"]),
        (UserDict({"a": X, "b": X, "labels": Y}), 0, ["a", "b"]),
        ((X, Y), 1, []),
        ([X, Y], 1, []),
        ([X], 1, []),
        (X, 1, []),
        (({"x": X}, Y), 0, ["x"]),
    ],
)
def test_a_model_gets_all_but_the_labels(batch: Any, args: int, names: list[str]) -> None:
    given, named = call_model(ByName(), batch)
    assert len(given) == args and list(named) == names
    assert all(value is X for value in (*given, *named.values()))


@pytest.mark.parametrize("batch", [{"x": X, "labels": Y}, (X, Y), [X, Y], UserDict({"labels": Y})])
def test_labels_are_found(batch: Any) -> None:
    assert has_labels(batch)
    assert labels_of(batch) is Y


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ({"x": X}, "has x"),
        ({"x": X, "labels": None}, "has x, labels"),
        ([X], "is a list of 1"),
        ((X, Y, Y), "is a tuple of 3"),
        (X, "is a Tensor"),
        ((X, "a"), "is a tuple of 2"),
    ],
)
def test_missing_labels_are_an_error_only_where_they_are_needed(batch: Any, found: str) -> None:
    with pytest.raises(DataError, match=found):
        labels_of(batch)


def test_scores_are_a_tensor_or_logits_in_full_precision() -> None:
    assert scores_of(X) is X
    assert scores_of(SimpleNamespace(logits=X)) is X
    assert scores_of(X.bfloat16()).dtype == torch.float32
    assert scores_of(X.double()).dtype == torch.float64
    with pytest.raises(ConfigError, match="returned a tuple"):
        scores_of((X,))


def test_scores_of_another_shape_are_refused() -> None:
    check_shape(X, (3, 2))
    with pytest.raises(ConfigError, match=r"shape \[3, 2\], and the task needs \[3, 5\]"):
        check_shape(X, (3, 5))
