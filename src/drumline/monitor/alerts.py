"""Alerts: values that stay past a limit for some time. Pure; the clock is the caller's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from drumline.config.monitor import Severity

Scope = Literal["gpu", "run", "host"]
State = Literal["pending", "firing", "resolved"]
Facts = Mapping[str, Mapping[str, float]]
"""By subject (UUID of a GPU, path of a run, name of a host) and metric; a metric that is not known is left out."""

STALE_S = 60.0
"""How long a missing value leaves an alert as it is: a scrape that failed once neither raises nor ends an alarm."""


@dataclass(frozen=True)
class Rule:
    """Fires for each subject whose metric is past a limit, either of the two, for at least for_s seconds."""

    name: str
    metric: str
    above: float | None = None
    below: float | None = None
    for_s: float = 0.0
    severity: Severity = "warning"
    scope: Scope = "gpu"
    """What the metric is a value of; other subjects do not have it."""
    action: str = ""
    """What to do about it."""
    text: str = ""
    """What it says when it fires, with {value} in it; '': metric, value and limit."""

    def holds(self, value: float) -> bool:
        """Whether the value is past a limit."""
        return (self.above is not None and value > self.above) or (self.below is not None and value < self.below)

    def limit(self) -> str:
        """The condition in words."""
        sides = [f"above {self.above:g}" if self.above is not None else ""]
        sides.append(f"below {self.below:g}" if self.below is not None else "")
        lasting = f" for {self.for_s:g} s" if self.for_s else ""
        return " or ".join(side for side in sides if side) + lasting


@dataclass(frozen=True)
class Alert:
    """A change of one rule's state for one subject."""

    rule: str
    subject: str
    state: State
    value: float
    """The newest that is known."""
    since: float
    """When the value went past the limit, on the clock that `step` was given."""
    severity: Severity
    message: str
    action: str

    def to_json(self) -> dict[str, Any]:
        """As sinks and events.jsonl hold it."""
        return dict(vars(self))


@dataclass(frozen=True)
class _Held:
    """A limit that is passed now, or was when the value was last known."""

    since: float
    seen: float
    value: float
    firing: bool


@dataclass(frozen=True)
class States:
    """Rules, and where each stands with each subject; only what is past a limit is kept."""

    rules: tuple[Rule, ...]
    stale_s: float = STALE_S
    held: Mapping[tuple[str, str], _Held] = field(default_factory=dict)

    def current(self) -> Iterator[Alert]:
        """What is pending or firing."""
        rules = {rule.name: rule for rule in self.rules}
        for (name, subject), held in self.held.items():
            yield _alert(rules[name], subject, "firing" if held.firing else "pending", held)


def begin(rules: Sequence[Rule], stale_s: float = STALE_S) -> States:
    """Nothing is past a limit yet."""
    return States(tuple(rules), stale_s)


def step(states: States, facts: Facts, now: float) -> tuple[States, list[Alert]]:
    """Take in what is known at `now` (seconds that never go back); returns the new states and what has changed.

    Each alert is told once when it becomes pending, once when it fires and once when it is resolved. One that was only
    pending ends without a word. A value that is missing or NaN changes nothing for stale_s after it was last known;
    then the subject counts as gone.
    """
    held: dict[tuple[str, str], _Held] = {}
    told: list[Alert] = []
    for rule in states.rules:
        before = {subject: each for (name, subject), each in states.held.items() if name == rule.name}
        for subject in dict.fromkeys((*facts, *before)):
            value = facts.get(subject, {}).get(rule.metric, math.nan)
            after = _follow(rule, before.get(subject), value, now, states.stale_s)
            told += _told(rule, subject, before.get(subject), after, value)
            if after is not None:
                held[rule.name, subject] = after
    return States(states.rules, states.stale_s, held), told


def _follow(rule: Rule, before: _Held | None, value: float, now: float, stale_s: float) -> _Held | None:
    if math.isnan(value):
        return before if before is not None and now - before.seen < stale_s else None
    if not rule.holds(value):
        return None
    since = now if before is None else before.since
    firing = now - since >= rule.for_s or (before is not None and before.firing)
    return _Held(since, now, value, firing)


def _told(rule: Rule, subject: str, before: _Held | None, after: _Held | None, value: float) -> Iterator[Alert]:
    was, now = before is not None and before.firing, after is not None and after.firing
    if after is not None and now and not was:
        yield _alert(rule, subject, "firing", after)
    elif after is not None and before is None:
        yield _alert(rule, subject, "pending", after)
    elif after is None and before is not None and was:
        last = before.value if math.isnan(value) else value
        yield _alert(rule, subject, "resolved", _Held(before.since, before.seen, last, firing=False))


def _alert(rule: Rule, subject: str, state: State, held: _Held) -> Alert:
    text = f"{rule.metric} is {held.value:.6g}"
    if state != "resolved":
        text += f", {rule.limit()}"
        text = f"{rule.text.format(value=held.value)} ({text})" if rule.text else text
    return Alert(rule.name, subject, state, held.value, held.since, rule.severity, text, rule.action)
