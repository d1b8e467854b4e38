"""Which workers are frozen or stuck, by their files and the looker's own clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.launcher.silence import MOST_BETWEEN_S, Silence


class Looker:
    """Looks at one worker's file, whose lines it writes."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.file = folder / "w.jsonl"
        self.silence = Silence(60.0, 100.0, lambda: self.now)

    def write(self, **line: float) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def after(self, seconds: float) -> str | None:
        self.now += seconds
        return self.silence.look({3: [self.file]}).get(3)


@pytest.fixture
def looker(tmp_path: Path) -> Looker:
    return Looker(tmp_path)


def test_a_file_that_stays_as_it_is_tells_of_a_frozen_worker(looker: Looker) -> None:
    looker.write(beat=1e9)
    assert looker.after(1) is None
    assert [looker.after(5) for _ in range(12)] == [None] * 12
    looker.write(beat=1e9 + 1)
    assert [looker.after(5) for _ in range(13)] == [None] * 13
    assert looker.after(5) == "it has said nothing for 65 s, as if it were stopped or frozen"


def test_a_beat_that_stays_as_it_is_tells_of_a_stuck_one(looker: Looker) -> None:
    reasons = []
    for step in range(22):
        looker.write(beat=-5.0, rows=step)
        reasons.append(looker.after(5))
    assert reasons[:21] == [None] * 21
    assert reasons[21] == "it has been at one batch for 105 s (hang_timeout_s)"


def test_one_without_a_beat_or_a_file_is_left_alone(looker: Looker) -> None:
    assert [looker.after(5) for _ in range(30)] == [None] * 30
    looker.write(rows=1)
    assert [looker.after(5) for _ in range(30)] == [None] * 30


def test_who_was_frozen_with_its_workers_gives_them_time(looker: Looker) -> None:
    looker.write(beat=1.0)
    assert looker.after(1) is None
    assert looker.after(86400) is None
    assert looker.after(60 - MOST_BETWEEN_S) is None
