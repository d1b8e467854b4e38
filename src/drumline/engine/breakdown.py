"""Where the time of a step goes: pure functions over what ran when, usable on any list of intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

COMMUNICATION = ("nccl", "gloo:", "c10d::")
"""How the names of collectives begin: NCCL's kernels (ncclDevKernel..., ncclKernel...), gloo's work, torch's calls."""

LOSS = 0.1
"""Share of a step from which what is not arithmetic is what to look at first; below it the step is bound by compute."""

Verdict = Literal["compute", "communication", "loader", "host"]


class Interval(NamedTuple):
    """Something that ran, in seconds of any clock."""

    name: str
    stream: int | str
    """GPU stream, or thread on the CPU."""
    begin: float
    end: float


@dataclass(frozen=True)
class Busy:
    """How long a device was busy, in seconds."""

    compute_s: float
    """Something other than communication ran."""
    communication_s: float
    """Some collective ran, waiting for slower ranks included; beside compute or not."""
    exposed_s: float
    """Only collectives ran."""


@dataclass(frozen=True)
class Breakdown:
    """One step, by what the device did; the four parts add up to it."""

    step_s: float
    compute_s: float
    exposed_s: float
    """Communication that nothing hid."""
    loader_s: float
    """The device had nothing to do and the loop waited for data."""
    host_s: float
    """The device had nothing to do for any other reason: Python, launches, synchronisation."""
    communication_s: float
    """All communication, hidden or not."""

    @property
    def shares(self) -> dict[Verdict, float]:
        """Parts of the step that add up to 1."""
        step = self.step_s or 1.0
        return {
            "compute": self.compute_s / step,
            "communication": self.exposed_s / step,
            "loader": self.loader_s / step,
            "host": self.host_s / step,
        }

    @property
    def verdict(self) -> Verdict:
        """What bounds the step: the largest part that is no compute where it is LOSS or more, else compute."""
        lost = {name: share for name, share in self.shares.items() if name != "compute"}
        largest = max(lost, key=lambda name: lost[name])
        return largest if lost[largest] >= LOSS else "compute"

    def describe(self) -> str:
        """One sentence with the numbers that the verdict rests on."""
        parts = ", ".join(
            f"{100 * share:.1f}% {'exposed communication' if name == 'communication' else name}"
            for name, share in self.shares.items()
        )
        return f"bound by {self.verdict}: of {1000 * self.step_s:.1f} ms a step {parts}"

    def to_json(self) -> dict[str, Any]:
        """Seconds by their names, with shares and verdict."""
        return {**asdict(self), "shares": self.shares, "verdict": self.verdict, "message": self.describe()}


def is_communication(name: str) -> bool:
    """Whether this kernel or call is a collective's, by its name."""
    return name.startswith(COMMUNICATION)


def busy(intervals: Iterable[Interval]) -> Busy:
    """How long anything computed and communicated, over all streams; what overlaps counts once."""
    compute: list[tuple[float, float]] = []
    communication: list[tuple[float, float]] = []
    for interval in intervals:
        (communication if is_communication(interval.name) else compute).append((interval.begin, interval.end))
    both = covered([*compute, *communication])
    return Busy(covered(compute), covered(communication), both - covered(compute))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of these spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def breakdown(step_s: float, found: Busy, waited_s: float) -> Breakdown:
    """One step out of what the device did in it and how long the loop waited for data, all in seconds a step.

    A wait that the device spent computing cost nothing, so that the loader gets no more of the step than was idle.
    """
    step_s = max(step_s, found.compute_s + found.exposed_s)
    idle = step_s - found.compute_s - found.exposed_s
    loader = min(idle, waited_s)
    return Breakdown(step_s, found.compute_s, found.exposed_s, loader, idle - loader, found.communication_s)


def own_times(intervals: Iterable[Interval]) -> list[Interval]:
    """The intervals with `end` set to begin plus their own time: what nested ones of the same stream took is off."""
    by_stream: defaultdict[int | str, list[Interval]] = defaultdict(list)
    for interval in intervals:
        by_stream[interval.stream].append(interval)
    found: list[Interval] = []
    for stream in by_stream.values():
        open_: list[tuple[Interval, float]] = []
        for interval in sorted(stream, key=lambda each: (each.begin, -each.end)):
            while open_ and open_[-1][0].end <= interval.begin:
                found.append(_own(*open_.pop()))
            if open_:
                outer, inner = open_.pop()
                open_.append((outer, inner + min(interval.end, outer.end) - interval.begin))
            open_.append((interval, 0.0))
        found += [_own(*each) for each in open_]
    return found


def _own(interval: Interval, inner: float) -> Interval:
    return interval._replace(end=interval.end - min(inner, interval.end - interval.begin))


def top(intervals: Sequence[Interval], limit: int, steps: int) -> list[dict[str, Any]]:
    """The names that took most of the time: their calls and seconds a step, and their share of all of it."""
    seconds: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for interval in intervals:
        seconds[interval.name] += interval.end - interval.begin
        calls[interval.name] += 1
    total = sum(seconds.values()) or 1.0
    names = sorted(seconds, key=lambda name: -seconds[name])[:limit]
    return [
        {"name": name, "calls": calls[name] / steps, "seconds": seconds[name] / steps, "share": seconds[name] / total}
        for name in names
    ]
