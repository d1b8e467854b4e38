"""Rates of a prediction run and how they are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.cli.prediction_progress import Display, Pace, Paces, describe, duration, facts_in_words, number
from drumline.predictions import DONE, PredictionDir, Progress


def test_rates_are_of_the_last_half_minute_and_say_how_long_it_takes() -> None:
    paces = Paces()
    assert paces.add(0.0, Progress(0, 0, 1000, 0)) == Pace()
    assert paces.add(10.0, Progress(100, 0, 1000, 500)) == Pace(10.0, 50.0, 90.0)
    for second in range(20, 60, 10):
        pace = paces.add(float(second), Progress(100 + 2 * (second - 10), 0, 1000, 500))
    assert pace == Pace(2.0, None, (1000 - 180) / 2.0)


def test_rows_of_an_earlier_attempt_are_no_speed() -> None:
    paces = Paces()
    paces.add(0.0, Progress(900, 0, 1000, 500))
    assert paces.add(10.0, Progress(900, 0, 1000, 500)) == Pace()
    assert paces.add(20.0, Progress(920, 0, 1000, 500)).rows_per_s == 1.0


def test_a_line_tells_what_is_known() -> None:
    assert describe(Progress(0, 0, None, 0), Pace(), None) == "the model is loaded and the rows are read"
    assert describe(Progress(0, 0, 10, 0), Pace(), None) == "0 of 10 rows"
    told = describe(Progress(1200, 3, 10000, 0), Pace(81.234, 4096.0, 108.0), 0.974)
    assert told == "1,200 of 10,000 rows (3 failed), 81.2 rows/s, 4,096 tokens/s, GPUs at 97%, 2 min left"


@pytest.mark.parametrize(("seconds", "words"), [(3, "3 s"), (89, "89 s"), (600, "10 min"), (12000, "3 h 20 min")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_numbers_have_three_digits_or_all_before_the_point() -> None:
    assert [number(value) for value in (0.01234, 1.0, 99.95, 12345.6)] == ["0.0123", "1", "100", "12,346"]


def test_facts_are_told_as_far_as_they_are_words() -> None:
    told = facts_in_words({"tokens": 4096, "engine": "static", "prefix": [1, 2]})
    assert told == "agreed on by all workers: tokens a batch: 4,096, engine: static"


def test_without_a_terminal_a_line_comes_now_and_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    directory = PredictionDir(tmp_path)
    for folder in (directory.windows, directory.workers):
        folder.mkdir(parents=True)
    directory.rows_facts.write_text(json.dumps({"num_rows": 4}))
    display = Display(directory, (), lambda: now)
    with display.shown():
        display.tick()
        batches = [{"rows": [0, 1]}, {"rows": [2]}]
        directory.window(0).write_text(json.dumps({"batches": batches, "problems": {"3": "bad"}}))
        directory.facts.write_text('{"tokens": 64}')
        for now in (5.0, 10.0, 12.0, 20.0):
            directory.state.write_bytes(bytes([DONE, 0 if now < 20 else DONE]))
            display.tick()
    assert capsys.readouterr().out.splitlines() == [
        "0 of 4 rows",
        "agreed on by all workers: tokens a batch: 64",
        "3 of 4 rows (1 failed), 0.3 rows/s, 3 s left",
        "4 of 4 rows (1 failed), 0.2 rows/s, 0 s left",
    ]
