"""Alerts: hold times, states, missing values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from drumline.monitor.alerts import Alert, Rule, States, begin, step

HOT = Rule("hot", "temperature_c", above=90, for_s=10, action="look at the fans")
EMPTY = Rule("empty", "disk_room", below=2, severity="critical", scope="run")


def run(states: States, values: Sequence[float | None], every_s: float = 5.0, start: float = 0.0) -> list[Alert]:
    """What comes of these temperatures of one GPU, one each every_s; None: nobody knows it."""
    told = []
    for number, value in enumerate(values):
        facts: dict[str, Mapping[str, float]] = {"g": {} if value is None else {"temperature_c": value}}
        states, new = step(states, facts, start + number * every_s)
        told += new
    return told


def states_of(alerts: Sequence[Alert]) -> list[str]:
    return [alert.state for alert in alerts]


def test_a_value_past_its_limit_is_pending_then_fires_once_and_is_resolved() -> None:
    told = run(begin([HOT]), [80, 91, 95, 96, 97, 98, 85, 80])
    assert states_of(told) == ["pending", "firing", "resolved"]
    assert [(alert.since, alert.value) for alert in told] == [(5, 91), (5, 96), (5, 85)]
    assert told[1].message == "temperature_c is 96, above 90 for 10 s"
    assert (told[1].rule, told[1].subject, told[1].action) == ("hot", "g", "look at the fans")


def test_one_that_was_only_pending_ends_without_a_word_and_the_hold_begins_anew() -> None:
    assert states_of(run(begin([HOT]), [95, 95, 80, 95, 95, 95])) == ["pending", "pending", "firing"]


def test_without_a_hold_it_fires_at_once() -> None:
    states, told = step(begin([EMPTY]), {"run": {"disk_room": 1.5}}, 0.0)
    assert states_of(told) == ["firing"]
    assert told[0].severity == "critical"
    assert [alert.state for alert in states.current()] == ["firing"]


def test_a_value_on_its_limit_is_not_past_it() -> None:
    assert run(begin([HOT]), [90, 90, 90, 90]) == []
    assert step(begin([EMPTY]), {"run": {"disk_room": 2.0}}, 0.0)[1] == []


def test_a_rule_may_have_words_of_its_own() -> None:
    rule = Rule("low", "use", below=0.2, text="at work {value:.0%} of the time")
    states, [fires] = step(begin([rule]), {"g": {"use": 0.1}}, 0.0)
    assert fires.message == "at work 10% of the time (use is 0.1, below 0.2)"
    _, [over] = step(states, {"g": {"use": 0.9}}, 1.0)
    assert over.message == "use is 0.9"


def test_either_limit_fires() -> None:
    rule = Rule("outside", "power_w", above=700, below=50)
    for watts, count in ((40, 1), (400, 0), (701, 1)):
        assert len(step(begin([rule]), {"g": {"power_w": watts}}, 0.0)[1]) == count


def test_a_missing_value_neither_fires_nor_resolves() -> None:
    pending = run(begin([HOT], stale_s=60), [95, None, None, None])
    assert states_of(pending) == ["pending"]
    firing = run(begin([HOT], stale_s=60), [95, 95, 95, None, math.nan, None, 95, 80])
    assert states_of(firing) == ["pending", "firing", "resolved"]


def test_the_hold_goes_on_over_a_gap() -> None:
    told = run(begin([HOT], stale_s=60), [95, None, 95])
    assert states_of(told) == ["pending", "firing"]
    assert told[1].since == 0


def test_a_subject_that_stays_away_is_gone() -> None:
    told = run(begin([HOT], stale_s=20), [95, 95, 95, None, None, None, None, None])
    assert states_of(told) == ["pending", "firing", "resolved"]
    assert told[-1].value == 95
    # It counts anew when it comes back.
    again = run(begin([HOT], stale_s=20), [95, 95, 95, None, None, None, None, None, 95])
    assert states_of(again)[-1] == "pending"


def test_a_subject_that_is_not_in_the_facts_at_all_is_missing_too() -> None:
    states, _ = step(begin([HOT], stale_s=20), {"g": {"temperature_c": 95}}, 0.0)
    states, told = step(states, {}, 10.0)
    assert told == []
    assert len(list(states.current())) == 1
    states, told = step(states, {}, 21.0)
    assert (told, list(states.current())) == ([], [])


def test_subjects_and_rules_are_told_apart() -> None:
    states = begin([HOT, EMPTY])
    facts = {"a": {"temperature_c": 95.0}, "b": {"temperature_c": 50.0}, "run": {"disk_room": 1.0}}
    states, _ = step(states, facts, 0.0)
    states, told = step(states, {**facts, "b": {"temperature_c": 99.0}}, 10.0)
    assert {(alert.rule, alert.subject, alert.state) for alert in told} == {
        ("hot", "a", "firing"),
        ("hot", "b", "pending"),
    }
    assert {(alert.rule, alert.subject) for alert in states.current()} == {("hot", "a"), ("hot", "b"), ("empty", "run")}


def test_what_is_not_past_a_limit_is_not_kept() -> None:
    states = begin([HOT])
    for second in range(100):
        states, _ = step(states, {f"g{second}": {"temperature_c": 50.0}}, float(second))
    assert states.held == {}


def test_an_alert_as_json_has_all_of_it() -> None:
    (alert,) = step(begin([EMPTY]), {"run": {"disk_room": 1.0}}, 3.0)[1]
    assert alert.to_json() == {
        "rule": "empty",
        "subject": "run",
        "state": "firing",
        "value": 1.0,
        "since": 3.0,
        "severity": "critical",
        "message": "disk_room is 1, below 2",
        "action": "",
    }
