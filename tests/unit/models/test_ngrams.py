"""Texts as the mean of the vectors of short runs of tokens."""

from __future__ import annotations

import torch

from drumline.models.ngrams import Ngrams


def make(num_outputs: int | None = 3, longest_run: int = 3) -> Ngrams:
    torch.manual_seed(0)
    return Ngrams(num_outputs, width=8, longest_run=longest_run, num_buckets=1000, dropout=0.0).double()


def test_padding_changes_nothing() -> None:
    model = make()
    alone = model(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 1, 1]]))
    ids = torch.tensor([[5, 6, 7, 0, 0], [1, 2, 3, 4, 5]])
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    padded = model(ids, mask)
    assert padded.shape == (2, 3)
    torch.testing.assert_close(padded[:1], alone, rtol=1e-12, atol=1e-12)
    ids[0, 3:] = 9
    torch.testing.assert_close(model(ids, mask)[:1], alone, rtol=1e-12, atol=1e-12)


def test_the_mean_is_over_all_runs() -> None:
    model = make(None, longest_run=2)
    ids = torch.tensor([[7, 8]])
    one, two = (model(torch.tensor([[token]])) for token in (7, 8))
    both = model(ids)
    buckets, counted = model._runs(ids, torch.ones_like(ids))
    assert buckets.shape == (1, 3) and bool(counted.all())
    torch.testing.assert_close(both, (one + two + model.vectors.weight[buckets[:, 2]]) / 3)


def test_order_matters_from_runs_of_two_on() -> None:
    there, back = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[4, 3, 2, 1]])
    assert not torch.allclose(make()(there), make()(back))
    torch.testing.assert_close(make(longest_run=1)(there), make(longest_run=1)(back))


def test_a_run_has_one_bucket_wherever_it_stands_and_runs_are_spread() -> None:
    model = make(longest_run=2)
    buckets, _ = model._runs(torch.tensor([[3, 1, 2, 1, 2]]), torch.ones(1, 5, dtype=torch.int64))
    assert buckets[0, 6] == buckets[0, 8]  # "1 2" at places 1 and 3
    codes, _ = model._runs(torch.arange(256).view(1, -1), torch.ones(1, 256, dtype=torch.int64))
    assert len(codes[0, :256].unique()) > 200  # at random: 226 of 1,000


def test_rows_shorter_than_the_longest_run_and_rows_of_nothing() -> None:
    model = make(None, longest_run=5)
    assert model(torch.tensor([[1]])).shape == (1, 8)
    nothing = model(torch.tensor([[1, 2]]), torch.zeros(1, 2, dtype=torch.int64))
    assert torch.equal(nothing, torch.zeros(1, 8, dtype=torch.float64))
