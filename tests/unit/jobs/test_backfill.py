"""How many devices the first that waits can spare."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as some

from drumline.jobs.backfill import spare


def test_what_is_more_than_enough_is_spared() -> None:
    assert spare(3, 5, [2]) == 2


def test_nothing_is_spared_where_all_that_run_do_not_hold_enough() -> None:
    assert spare(8, 3, [2, 2]) == 0


@settings(derandomize=True, max_examples=200, deadline=None)
@given(some.integers(1, 12), some.integers(0, 11), some.lists(some.integers(1, 8), max_size=6))
def test_it_is_the_most_that_never_matters(needed: int, free: int, held: list[int]) -> None:
    """By trying all sets of jobs that may have ended."""
    endings = [sum(ended) for ended in chain.from_iterable(combinations(held, n) for n in range(len(held) + 1))]

    def matters(spared: int) -> bool:
        return any(free + ended >= needed > free - spared + ended for ended in endings)

    found = spare(needed, free, held)
    assert 0 <= found <= free and not matters(found)
    if free + sum(held) >= needed and found < free:
        assert matters(found + 1)
