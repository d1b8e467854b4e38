from __future__ import annotations

import pytest
import torch

from drumline.errors import DataError, ValueRangeError
from drumline.tasks.ranges import check_ids, check_labels, tensor_of


def test_values_in_range_pass() -> None:
    check_ids(torch.tensor([[0, 9], [5, 3]]), 10, "input_ids")
    check_ids(torch.empty(0, 4, dtype=torch.int64), 10, "input_ids")
    check_labels(torch.tensor([0, -100, 9]), 10)
    check_labels(torch.tensor([-1, 2]), 3, ignore=-1)


def test_the_value_its_place_and_the_range_are_named() -> None:
    with pytest.raises(ValueRangeError, match=r"input_ids\[1, 0\] is 10; allowed are 0 to 9\n") as caught:
        check_ids(torch.tensor([[0, 9], [10, 3]]), 10, "input_ids")
    assert "tokenizer" in caught.value.fix


def test_the_first_of_several_is_named_and_the_rest_counted() -> None:
    with pytest.raises(ValueRangeError, match=r"labels\[1\] is -1 \(and 2 more\); allowed are 0 to 2, or -100"):
        check_labels(torch.tensor([-100, -1, 3, 3]), 3)


@pytest.mark.parametrize("value", [-1, -100])
def test_ids_have_no_ignored_value(value: int) -> None:
    with pytest.raises(ValueRangeError, match=f"is {value}"):
        check_ids(torch.tensor([1, value]), 10, "input_ids")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_values_that_are_no_whole_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueRangeError, match=f"labels are {dtype}"):
        check_labels(torch.tensor([1, 0]).to(dtype), 10)


@pytest.mark.parametrize(
    ("batch", "found"),
    [({"text": 1, "ids": 2}, "has text, ids"), ([torch.ones(1)], "is a list"), ({"labels": 1}, "has")],
)
def test_a_batch_without_the_tensor_says_what_it_has(batch: object, found: str) -> None:
    with pytest.raises(DataError, match=f"needs the tensor 'labels', and this one {found}"):
        tensor_of(batch, "labels")
