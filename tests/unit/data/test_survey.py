"""A look through the rows: what is counted, of how many of them, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest

from drumline.data import survey
from drumline.data.survey import Content, Survey, lengths_in, look_through, measure, places, text_in
from drumline.errors import DataError

ROWS = [
    {"text": "Call me Ishmael.", "label": "a"},
    {"text": " \n", "label": "a"},
    {"text": "CALL me  Ishmael.", "label": "b"},
    {"text": "Call me Ishmael.", "label": "a"},
    {"text": "Зовите меня Измаил", "label": "b"},
    {"text": "", "label": "b"},
]


def content(record: Mapping[str, Any]) -> Content:
    return Content(record["text"], (record["label"],))


def ticking(step_s: float) -> Callable[[], float]:
    ticks = count()
    return lambda: next(ticks) * step_s


@pytest.mark.parametrize("num_rows", [0, 1, 63, 64, 65, 1000, 12_345])
def test_each_row_is_looked_at_once(num_rows: int) -> None:
    assert sorted(places(num_rows, num_rows)) == list(range(num_rows))
    assert len(list(places(num_rows, 100))) == min(100, num_rows)


def test_wherever_it_ends_rows_from_all_over_were_looked_at() -> None:
    found = np.array(list(places(100_000, 6400)))
    assert len(set(found.tolist())) == 6400
    parts = np.bincount(found // 10_000)
    assert parts.min() >= 500 and parts.max() <= 800, "each tenth has about a tenth of them"


def test_what_is_counted() -> None:
    found = look_through(ROWS, content)
    assert found.whole
    assert (found.num_empty, found.first_empty) == (2, 1)
    assert found.scripts == {"Latin": 3, "Cyrillic": 1}
    assert found.labels == {"a": 3, "b": 3}
    assert found.exact.repeated().num_rows == 1
    assert found.loose.repeated().num_rows == 2
    assert found.loose.contradicted(found.label_hashes) == 1


def test_rows_without_texts_are_neither_empty_nor_the_same() -> None:
    found = look_through(ROWS, lambda record: Content(None, (record["label"],)))
    assert (found.num_empty, found.exact.repeated().num_rows) == (0, 0)
    assert found.labels == {"a": 3, "b": 3}


def test_time_and_number_of_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ROWS * 1000
    found = look_through(rows, content, limit_s=99.5, clock=ticking(1.0))
    assert (found.num_seen, found.num_rows, found.whole) == (100, 6000, False)
    monkeypatch.setattr(survey, "MOST_ROWS", 70)
    assert look_through(rows, content).num_seen == 70


def test_lengths_of_texts() -> None:
    found = lengths_in(np.array([5, 1, 3, 100, *[4] * 96]), 10)
    assert found is not None
    assert (found.total, found.num_texts) == (403, 100)
    assert (found.shortest, found.median, found.longest_95, found.longest) == (1, 4, 4, 100)
    assert (found.num_cut, found.num_lost) == (1, 90)
    assert lengths_in(np.array([], dtype=np.int64), 10) is None


def test_rows_that_the_task_cannot_read_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(record: Mapping[str, Any]) -> tuple[int, ...]:
        if record["label"] == "b":
            raise DataError("text is missing", "correct the row")
        return len(record["text"]), 1

    found = Survey(len(ROWS))
    lengths = measure(ROWS, tokens, found, 8)
    assert lengths is not None
    assert (lengths.total, lengths.num_texts, lengths.num_cut) == (8 + 2 + 8 + 3, 6, 2)
    assert (found.num_unreadable, found.first_unreadable) == (3, (2, "text is missing"))
    monkeypatch.setattr(survey, "MOST_MEASURED", 1)
    lengths = measure(ROWS, tokens, found, 8)
    assert lengths is not None and lengths.num_texts == 2


def test_the_words_of_messages_are_their_text() -> None:
    messages = [
        {"role": "user", "content": "Hello"},
        {"from": "gpt", "value": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "there"}]},
        {"role": "assistant", "content": None},
    ]
    assert text_in({"messages": messages, "id": "x"}, ("system", "messages")) == "Hello\nHi\nthere"
    assert text_in({"a": 1.5, "b": [True, None], "c": "t"}, ("a", "b", "c")) == "1.5\nTrue\nt"
