"""Records of a file that begins anew: each is given once, and what was made again comes again."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.service.given import Given


def records(*steps: int, attempt: int = 0) -> list[dict[str, Any]]:
    return [{"step": step, "time": 100.0 * attempt + step, "loss": None} for step in steps]


def taken(known: Given, found: list[dict[str, Any]]) -> list[int]:
    return [record["step"] for record in found if known.is_new(record)]


def test_what_has_stayed_comes_once_and_what_was_made_again_comes_again() -> None:
    known = Given()
    assert taken(known, records(1, 2, 3, 4)) == [1, 2, 3, 4]
    known.begin()
    assert taken(known, records(1, 2) + records(3, 4, 5, attempt=1)) == [3, 4, 5]
    known.begin()
    assert taken(known, records(1, 2) + records(3, attempt=1) + records(4, attempt=2)) == [4]


def test_records_that_nobody_had_seen_before_the_file_began_anew_are_new() -> None:
    known = Given()
    assert taken(known, records(1, 2)) == [1, 2]
    known.begin()
    assert taken(known, records(1, 2, 3, 4)) == [3, 4]


def test_a_file_that_begins_anew_while_it_is_read_again_gives_nothing_twice() -> None:
    known = Given()
    assert taken(known, records(1, 2, 3, 4, 5)) == [1, 2, 3, 4, 5]
    known.begin()
    assert taken(known, records(1, 2)) == []
    known.begin()
    assert taken(known, records(1, 2, 3) + records(4, attempt=1)) == [4]


def test_the_same_record_twice_in_a_file_is_two() -> None:
    known = Given()
    assert taken(known, records(1, 1, 2)) == [1, 1, 2]
    known.begin()
    assert taken(known, records(1, 1, 1)) == [1]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(attempts=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6), st.floats(0, 1)), min_size=1, max_size=5))
def test_each_record_that_a_file_ever_showed_is_given_once(attempts: list[tuple[int, int, float]]) -> None:
    known, file, told, shown = Given(), list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (kept, more, part) in enumerate(attempts):
        file = file[:kept] + records(*range(more), attempt=number)
        seen = file[: round(part * len(file))]  # the reader may not come to the end before the next attempt
        shown += [record for record in seen if record not in shown]
        if number:
            known.begin()
        told += [record for record in seen if known.is_new(record)]
    assert told == shown
