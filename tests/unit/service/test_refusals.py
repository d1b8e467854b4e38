"""Refused keys are counted: an attacker gets one line a minute, and the number of what is not told is told later."""

from __future__ import annotations

import pytest

from drumline.service.refusals import EVERY_S, MOST, OTHERS, Refusals

Entry = tuple[str, str, str, float]


class Told:
    """Refusals with a clock in hand, and what they wrote."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.entries: list[Entry] = []
        self.refusals = Refusals(lambda *entry: self.entries.append(entry), lambda: self.now)

    def count(self, address: str | None, what: str = "an unknown key") -> None:
        self.refusals.count(address, "key_refused", what)


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_first_is_told_at_once_and_the_rest_of_the_minute_as_a_number(told: Told) -> None:
    for number in range(100):
        told.count("10.0.0.9", f"key-{number}")
    assert told.entries == [("key_refused", "nobody (10.0.0.9)", "key-0", 1000.0)]
    told.now += EVERY_S
    told.count("10.0.0.9", "key-a")
    assert told.entries[1:] == [("key_refused", "nobody (10.0.0.9)", "key-99, the last of 99 more", 1060.0)]
    told.now += EVERY_S
    told.refusals.write_due()
    assert told.entries[2:] == [("key_refused", "nobody (10.0.0.9)", "key-a, the last of 1 more", 1120.0)]
    told.now += EVERY_S
    told.refusals.write_due()
    told.count("10.0.0.9", "key-b")
    assert told.entries[3:] == [("key_refused", "nobody (10.0.0.9)", "key-b", 1180.0)]


def test_an_hour_of_trying_is_a_line_a_minute(told: Told) -> None:
    for _ in range(3600):
        told.count("10.0.0.9")
        told.now += 1.0
    assert 58 <= len(told.entries) <= 61
    numbers = [1 if "more" not in entry[2] else int(entry[2].split()[-2]) for entry in told.entries]
    told.refusals.write_due(all_of_them=True)
    assert sum(numbers) + int(told.entries[-1][2].split()[-2]) == 3600


def test_what_is_counted_is_told_by_whoever_comes_next_and_at_the_end(told: Told) -> None:
    for _ in range(3):
        told.count("10.0.0.9")
    told.now += EVERY_S
    told.count("10.0.0.8")
    assert [entry[1] for entry in told.entries] == ["nobody (10.0.0.9)", "nobody (10.0.0.9)", "nobody (10.0.0.8)"]
    told.count("10.0.0.8")
    told.refusals.write_due()
    assert len(told.entries) == 3
    told.refusals.write_due(all_of_them=True)
    assert told.entries[3][1:3] == ("nobody (10.0.0.8)", "an unknown key, the last of 1 more")


def test_many_addresses_share_a_line(told: Told) -> None:
    for number in range(1000):
        told.count(f"10.0.{number // 250}.{number % 250}")
    assert len(told.entries) == MOST + 1 and told.entries[-1][1] == f"nobody ({OTHERS})"
    told.now += EVERY_S
    told.refusals.write_due()
    assert told.entries[-1][2] == f"an unknown key, the last of {1000 - MOST - 1} more"


@pytest.mark.parametrize(
    ("address", "who"),
    [
        (None, "local"),
        ("testclient", "testclient"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ],
)
def test_who_has_many_addresses_is_one(told: Told, address: str | None, who: str) -> None:
    told.count(address)
    assert told.entries[0][1] == f"nobody ({who})"


def test_a_clock_that_is_set_back_delays_nothing(told: Told) -> None:
    told.count("10.0.0.9")
    told.count("10.0.0.9")
    told.now = 10.0
    told.refusals.write_due()
    assert told.entries[1][2] == "an unknown key, the last of 1 more"
