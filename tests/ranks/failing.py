"""How tests look at a call that fails on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.rank_pool import RankError, RankPool


class Ending(NamedTuple):
    """How one rank ended."""

    name: str
    """Of the exception's type."""
    message: str


def be_there() -> None:
    """Nothing, on a rank that has to be running."""


def failures_of(ranks: RankPool, world: int, fn: Callable[..., Any], *args: Any, within_s: float = 8.0) -> list[Ending]:
    """Run a call that has to fail on every rank in time; returns how each ended, by rank."""
    ranks.run(world, be_there)  # starting ranks takes longer
    start = time.monotonic()
    with pytest.raises(RankError) as caught:
        ranks.run(world, fn, *args)
    assert time.monotonic() - start < within_s
    errors = caught.value.errors
    assert sorted(errors) == list(range(world))
    return [Ending(errors[rank].type_name, errors[rank].message) for rank in range(world)]
