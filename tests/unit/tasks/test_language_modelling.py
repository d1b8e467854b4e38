from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from drumline.errors import DataError, ValueRangeError
from drumline.tasks.language_modelling import LanguageModelling

TASK = LanguageModelling(vocab_size=5)
BATCH = {
    "input_ids": torch.tensor([[0, 1, 2], [3, 4, 0]]),
    "labels": torch.tensor([[1, 2, -100], [4, 0, -100]]),
}


class Table(nn.Module):
    """Logits of the next token from the token alone."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(5, 5, generator=generator, dtype=torch.float64).to(dtype))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.weight[input_ids]


def by_hand(table: Table) -> float:
    pairs = [(0, 1), (1, 2), (3, 4), (4, 0)]
    rows = table.weight.tolist()
    return float(sum(math.log(sum(map(math.exp, rows[here]))) - rows[here][then] for here, then in pairs))


def test_the_total_is_the_sum_over_labelled_tokens() -> None:
    table = Table()
    loss = TASK.loss(TASK.forward(table, BATCH), BATCH)
    assert TASK.count(BATCH) == 4
    assert loss.total.dtype == torch.float64
    assert loss.total.item() == pytest.approx(by_hand(table), rel=1e-14)
    assert (loss.aux, loss.metrics) == (None, {})


def test_low_precision_logits_are_summed_in_float32() -> None:
    table = Table(torch.bfloat16)
    loss = TASK.loss(TASK.forward(table, BATCH), BATCH)
    assert loss.total.dtype == torch.float32
    assert loss.total.item() == pytest.approx(by_hand(table), rel=1e-6)


def test_any_split_gives_the_same_sum_and_gradient() -> None:
    whole, split = Table(), Table()
    TASK.loss(TASK.forward(whole, BATCH), BATCH).total.backward()
    for row in range(2):
        part = {name: value[row : row + 1] for name, value in BATCH.items()}
        TASK.loss(TASK.forward(split, part), part).total.backward()
    assert whole.weight.grad is not None
    assert split.weight.grad is not None
    torch.testing.assert_close(whole.weight.grad, split.weight.grad, rtol=0, atol=1e-15)


def test_a_batch_without_labels_gives_zero_and_zero_gradient() -> None:
    batch = {**BATCH, "labels": torch.full((2, 3), -100)}
    table = Table()
    loss = TASK.loss(TASK.forward(table, batch), batch)
    loss.total.backward()
    assert TASK.count(batch) == 0
    assert loss.total.item() == 0
    assert table.weight.grad is not None
    assert not table.weight.grad.any()
    assert not TASK.needs_count


def test_accuracy_is_counted_where_no_gradient_is_wanted() -> None:
    table = Table()
    with torch.no_grad():
        table.weight.copy_(torch.eye(5).roll(1, dims=1))
        table.weight[4] = torch.tensor([0.0, 1, 0, 0, 0])
        correct, count = TASK.loss(TASK.forward(table, BATCH), BATCH).metrics["accuracy"]
    assert (int(correct), int(count)) == (3, 4)


def test_ids_and_labels_out_of_range_are_refused() -> None:
    TASK.check(BATCH)
    with pytest.raises(ValueRangeError, match=r"input_ids\[0, 1\] is 5"):
        TASK.check({**BATCH, "input_ids": torch.tensor([[0, 5, 2]])})
    with pytest.raises(ValueRangeError, match=r"labels\[0, 0\] is 7"):
        TASK.check({**BATCH, "labels": torch.tensor([[7, -100, 2]])})


def test_another_kind_of_batch_is_refused() -> None:
    with pytest.raises(DataError, match="'labels'"):
        TASK.count(torch.ones(2, 3))
