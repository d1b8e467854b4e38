"""PowerSGD on one rank: exact where it can be, never losing what it leaves out, unharmed by zeros and NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from drumline.parallel.low_rank import LowRank, factor_shape, orthonormalise


def alone(rank: int = 2) -> LowRank:
    return LowRank(["first", "second", "bias"], rank, lambda tensor: None)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sent(low_rank: LowRank, **gradients: Tensor) -> dict[str, Tensor]:
    copies = {name: gradient.clone() for name, gradient in gradients.items()}
    low_rank.sum(copies)
    return copies


def test_a_matrix_of_that_rank_and_a_vector_arrive_whole() -> None:
    matrix, bias = draw(0, 20, 2) @ draw(1, 2, 12), draw(2, 7)
    arrived = sent(alone(2), first=matrix, bias=bias)
    torch.testing.assert_close(arrived["first"], matrix, rtol=1e-9, atol=1e-9)
    assert torch.equal(arrived["bias"], bias)


def test_a_full_matrix_comes_in_part_and_the_rest_later() -> None:
    low_rank, matrix = alone(1), draw(0, 20, 12)
    total = torch.zeros_like(matrix)
    first = sent(low_rank, first=matrix)["first"]
    assert torch.linalg.matrix_rank(first) == 1
    total += first
    for _ in range(39):
        total += sent(low_rank, first=matrix)["first"]
    torch.testing.assert_close(total + low_rank.errors()["first"], 40 * matrix, rtol=0, atol=1e-9)
    assert float((total - 40 * matrix).norm()) < 0.3 * float(40 * matrix.norm())


def test_equal_shapes_go_together_and_come_apart_again() -> None:
    matrices = {"first": draw(0, 20, 1) @ draw(1, 1, 12), "second": draw(2, 20, 1) @ draw(3, 1, 12)}
    arrived = sent(alone(1), **matrices)
    torch.testing.assert_close(arrived, matrices, rtol=1e-9, atol=1e-9)


def test_a_kernel_is_a_matrix_of_its_first_dimension() -> None:
    kernel = (draw(0, 20, 1) @ draw(1, 1, 18)).view(20, 2, 3, 3)
    torch.testing.assert_close(sent(alone(1), first=kernel)["first"], kernel, rtol=1e-9, atol=1e-9)


def test_a_matrix_that_had_no_gradient_gets_one_again() -> None:
    low_rank, matrix = alone(2), draw(0, 20, 2) @ draw(1, 2, 12)
    assert torch.equal(sent(low_rank, first=torch.zeros_like(matrix))["first"], torch.zeros_like(matrix))
    torch.testing.assert_close(sent(low_rank, first=matrix)["first"], matrix, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_arrives_so_and_leaves_no_trace(value: float) -> None:
    low_rank, matrix = alone(1), draw(0, 20, 12)
    sent(low_rank, first=matrix)
    errors = low_rank.errors()["first"]
    spoilt = matrix.clone()
    spoilt[3, 4] = value
    assert not bool(torch.isfinite(sent(low_rank, first=spoilt)["first"]).all())
    low_rank.settle(torch.zeros(()), 1.0)
    assert torch.equal(low_rank.errors()["first"], errors)
    assert bool(torch.isfinite(sent(low_rank, first=matrix)["first"]).all())


def test_an_applied_window_keeps_its_errors_at_the_new_scale() -> None:
    low_rank = alone(1)
    sent(low_rank, first=draw(0, 20, 12))
    errors = low_rank.errors()["first"]
    low_rank.settle(torch.ones(()), torch.tensor(2.0))
    assert torch.equal(low_rank.errors()["first"], 2 * errors)


def test_a_window_taken_back_leaves_the_errors_of_before() -> None:
    low_rank = alone(1)
    sent(low_rank, first=draw(0, 20, 12))
    errors = low_rank.errors()["first"]
    sent(low_rank, first=draw(1, 20, 12))
    low_rank.take_back()
    assert torch.equal(low_rank.errors()["first"], errors)


def test_another_one_goes_on_where_it_was() -> None:
    one, other = alone(1), alone(1)
    sent(one, first=draw(0, 20, 12))
    other.load(one.errors(), one.factors())
    assert torch.equal(other.errors()["first"], one.errors()["first"])  # before any window
    assert torch.equal(sent(one, first=draw(1, 20, 12))["first"], sent(other, first=draw(1, 20, 12))["first"])


def test_factors_of_another_rank_are_left_aside() -> None:
    one, other = alone(1), alone(2)
    sent(one, first=draw(0, 20, 12))
    other.load(one.errors(), one.factors())
    sent(other, first=draw(1, 20, 12))
    assert other.factors()["first"].shape == (12, 2)


@pytest.mark.parametrize(
    ("shape", "factors"),
    [((20, 12), (20, 12, 2)), ((20, 2, 6), (20, 12, 2)), ((8, 8), None), ((100,), None), ((), None)],
)
def test_what_is_worth_it(shape: tuple[int, ...], factors: tuple[int, int, int] | None) -> None:
    assert factor_shape(torch.zeros(shape), 2) == factors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_columns_become_orthonormal(dtype: torch.dtype) -> None:
    columns = torch.stack([draw(0, 30, 3), 1e-9 * draw(1, 30, 3)]).to(dtype)
    columns[..., 2] = columns[..., 1] + columns[..., 2] / 16
    orthonormalise(columns)
    tolerance = 2 * torch.finfo(dtype).eps ** 0.5 if dtype != torch.bfloat16 else 0.05
    eye = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    torch.testing.assert_close(columns.double().mT @ columns.double(), eye, rtol=0, atol=tolerance)


def test_missing_directions_never_grow() -> None:
    column = draw(0, 30, 1)
    columns = torch.cat([column, column, torch.zeros_like(column)], 1)[None].float()
    orthonormalise(columns)
    lengths = torch.linalg.svdvals(columns[0])
    assert float(lengths[0]) == pytest.approx(1, abs=1e-3) and float(lengths[1:].max()) <= 1
    assert bool((columns[0, :, 2] == 0).all())
