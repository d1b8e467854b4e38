"""Draws: of the right distribution, from the right tokens, and of the row alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drumline.infer.sampling import Chooser, Sampling, draw, uniforms
from tests.unit.infer.tiny_causal import tokens

SHARES = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15], dtype=torch.float64)
SCORES = SHARES.log()[None].float()


def drawn(sampling: Sampling, count: int = 4000) -> list[float]:
    """How often each token is drawn, by evenly spread numbers."""
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    found = draw(SCORES.expand(count, -1), sampling, uniform)
    return [float((found == token).double().mean()) for token in range(5)]


def test_tokens_come_with_their_probabilities() -> None:
    assert drawn(Sampling(temperature=1.0)) == pytest.approx(SHARES.tolist(), abs=1e-3)
    squared = SHARES**2 / (SHARES**2).sum()
    assert drawn(Sampling(temperature=0.5)) == pytest.approx(squared.tolist(), abs=1e-3)


def test_the_likeliest_are_kept() -> None:
    assert drawn(Sampling(temperature=1.0, top_k=2)) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0], abs=1e-3)
    assert drawn(Sampling(temperature=1.0, top_p=0.69)) == pytest.approx([0, 4 / 7, 0, 3 / 7, 0], abs=1e-3)
    # The one that crosses the share is in.
    whole = 0.85
    assert drawn(Sampling(temperature=1.0, top_p=0.71)) == pytest.approx(
        [0, 0.4 / whole, 0, 0.3 / whole, 0.15 / whole], abs=1e-3
    )
    assert drawn(Sampling(temperature=1.0, top_p=1e-6)) == [0, 1, 0, 0, 0]
    # Of the two that top_k leaves, 4/7 is more than a half.
    assert drawn(Sampling(temperature=1.0, top_k=2, top_p=0.5)) == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.6}])
def test_the_ends_of_the_range_give_tokens(options: dict[str, float]) -> None:
    uniform = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    impossible = torch.cat([SCORES, torch.full((1, 2), -torch.inf)], dim=1)
    found = draw(impossible.expand(2, -1), Sampling(temperature=1.0, **options), uniform).tolist()  # type: ignore[arg-type]
    assert all(token < 5 for token in found)


def test_streams_belong_to_seed_and_row() -> None:
    assert np.array_equal(uniforms(1, 7, 5), uniforms(1, 7, 9)[:5])
    others = [uniforms(1, 7, 5), uniforms(2, 7, 5), uniforms(1, 8, 5), uniforms(7, 1, 5)]
    assert len({tuple(each) for each in others}) == 4
    many = np.concatenate([uniforms(0, row, 8) for row in range(500)])
    assert many.min() >= 0 and many.max() < 1 and many.mean() == pytest.approx(0.5, abs=0.02)
    # What is drawn for a row stays what it was, in each version of this package.
    assert uniforms(0, 0, 2).tolist() == [0.3853275401313948, 0.4053645807168962]


def test_a_row_draws_the_same_in_any_batch() -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    rows = [(number, tokens(1)) for number in range(6)]
    scores = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    whole = Chooser(sampling, rows, 4)
    found = torch.stack([whole.choose(scores, step) for step in range(4)], dim=1)
    few = Chooser(sampling, [rows[4], None, rows[1]], 2)
    part = torch.stack([few.choose(scores[[4, 0, 1]], step) for step in range(2)], dim=1)
    assert part[[0, 2]].tolist() == found[[4, 1], :2].tolist()
    assert len({tuple(row) for row in found.tolist()}) == 6


def test_a_penalty_falls_on_what_stands_there() -> None:
    chooser = Chooser(Sampling(repetition_penalty=2.0), [(0, tokens(1, 1)), None], 3)
    scores = torch.tensor([[1.5, 2.0, 1.2, -3.0], [0.0, 2.0, 1.9, 0.0]])
    # Token 1 stands in the first row's prompt: 2.0 counts 1.0; then 0 does too, then 2.
    assert [chooser.choose(scores, step).tolist() for step in range(3)] == [[0, 1], [2, 2], [1, 1]]
    negative = Chooser(Sampling(repetition_penalty=2.0), [(0, tokens(0))], 1)
    assert negative.choose(torch.tensor([[-1.0, -1.5]]), 0).tolist() == [1]


def test_of_equal_scores_the_first_is_taken() -> None:
    scores = torch.zeros(1, 5)
    assert Chooser(Sampling(), [(0, tokens(1))], 1).choose(scores, 0).tolist() == [0]
    assert draw(scores, Sampling(temperature=1.0, top_k=1), torch.tensor([0.9], dtype=torch.float64)).tolist() == [0]
