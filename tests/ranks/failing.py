"""How tests look at a call that fails on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.rank_pool import RankError, RankPool


class Ending(NamedTuple):
    """How one rank ended."""

    name: str
    """Of the exception's type."""
    message: str


def failures_of(ranks: RankPool, world: int, fn: Callable[..., Any], *args: Any, within_s: float = 5.0) -> list[Ending]:
    """Run a call that has to fail on every rank, each within a time of the first; returns how they ended, by rank."""
    with pytest.raises(RankError) as caught:
        ranks.run(world, fn, *args)
    errors = caught.value.errors
    assert sorted(errors) == list(range(world))
    times = [error.time for error in errors.values()]
    assert max(times) - min(times) < within_s
    return [Ending(errors[rank].type_name, errors[rank].message) for rank in range(world)]
