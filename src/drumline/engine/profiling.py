"""`train.profile`: torch's profiler over a few updates of a user's own run, and a verdict on where their time goes."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drumline.config.train import ProfileConfig
from drumline.engine.breakdown import Breakdown, Busy, Interval, breakdown, busy, is_communication, own_times, top
from drumline.engine.timing import DeviceClock, Mark
from drumline.rundir import sync_directory, write_json
from drumline.track.profile_page import SUMMARY, TRACE

if TYPE_CHECKING:
    from drumline.engine.run import Run

logger = logging.getLogger("drumline")

MOST_NAMES = 15
"""Kernels and operators in the summary."""

LOADER = "enumerate(DataLoader)"
"""How torch's profiler calls the loop's turn in the loader, where rows are read in the loop's own process."""

Event = dict[str, Any]


@dataclass
class Span:
    """Updates that are timed, without what lies between two of them (evaluation, checkpoints, the user's code)."""

    waited_s: float
    """The feed's counter when it began."""
    marks: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each update."""
    begun: Mark = None


class Profile:
    """Watches `steps` updates after `start` of this process; all ranks do so at the same updates.

    Recording slows the host down, so on a GPU the length of a step is measured over as many updates just before the
    window. On the CPU it slows down what is recorded too, and the length is that of the updates in the window.
    """

    def __init__(self, settings: ProfileConfig, device: torch.device) -> None:
        self._settings = settings
        self._device = device
        self._clock = DeviceClock(device)
        self._seen = 0
        # Not the first update of all, which compiles and allocates.
        self._first_timed = max(1, settings.start - settings.steps)
        self._timed: Span | None = None
        self._watched: Span | None = None
        self._timed_s: tuple[float, float] | None = None
        self._profiler: torch.profiler.profile | None = None

    def before(self, run: Run) -> None:
        """Called before an update's first pass."""
        if self._seen == self._settings.start:
            self._begin_watching(run)
        elif self._device.type == "cuda" and self._seen == self._first_timed < self._settings.start:
            self._timed = Span(run.feed.waited_s)
        span = self._watched or self._timed
        if span is not None:
            span.begun = self._clock.mark()

    def after(self, run: Run) -> None:
        """Called when an update's work is with the device; ends the window after the last one."""
        self._seen += 1
        span = self._watched or self._timed
        if span is not None:
            span.marks.append((span.begun, self._clock.mark()))
        if self._watched is not None and len(self._watched.marks) == self._settings.steps:
            self.finish(run)

    def _begin_watching(self, run: Run) -> None:
        if self._timed is not None:
            self._timed_s, self._timed = self._per_update(self._timed, run), None
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._clock.drain()
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self._profiler.start()
        # The profiler takes its time to start; a rank that is late would look like slow communication on the others.
        run.groups.side.exchange("profile begins")
        self._watched = Span(run.feed.waited_s)

    def _per_update(self, span: Span, run: Run) -> tuple[float, float]:
        """Seconds of an update, and of waiting for data in it."""
        self._clock.drain()
        seconds = sum(self._clock.seconds(*update) for update in span.marks)
        return seconds / len(span.marks), (run.feed.waited_s - span.waited_s) / len(span.marks)

    def finish(self, run: Run) -> None:
        """End the window, if one is open, and write what it showed; the ranks exchange their numbers."""
        watched, profiler = self._watched, self._profiler
        if watched is None or profiler is None:
            return
        updates = len(watched.marks)
        step_s, waited_s = self._per_update(watched, run) if updates else (0.0, 0.0)
        self.close()
        if not updates:  # the run has ended just when it would have begun
            return
        if self._timed_s is not None:
            step_s, waited_s = self._timed_s
        folder, rank = run.directory.profile, run.groups.world.rank
        folder.mkdir(parents=True, exist_ok=True)
        raw = folder / f".rank_{rank}.trace.json"
        try:
            profiler.export_chrome_trace(str(raw))
            seen = Seen.of(json.loads(raw.read_bytes())["traceEvents"], self._device)
            found = breakdown(step_s, seen.busy(updates), waited_s)
            by_rank = run.groups.side.exchange("profile", asdict(found))
            if rank == 0:
                compress(raw, folder / TRACE)
                self._write(run, summarise([Breakdown(**each) for each in by_rank], seen, updates), updates)
        finally:
            raw.unlink(missing_ok=True)

    def _write(self, run: Run, summary: dict[str, Any], updates: int) -> None:
        last = run.progress.step
        facts = {"first": last - updates + 1, "last": last, "device": self._device.type}
        facts["timed"] = "before" if self._timed_s is not None else "within"
        write_json(run.directory.profile / SUMMARY, {**facts, **summary})
        logger.info("profile of updates %d to %d: %s", facts["first"], last, summary["message"])
        run.event("profile", step=last, verdict=summary["verdict"], message=summary["message"])

    def close(self) -> None:
        """Stop recording; closing twice is allowed."""
        profiler, self._profiler = self._profiler, None
        self._watched = self._timed = None
        if profiler is not None:
            profiler.stop()


@dataclass(frozen=True)
class Seen:
    """What one rank's trace shows."""

    ran: Sequence[Interval]
    """On the device: a GPU's kernels and copies; on the CPU operators and collectives."""
    kernels: Sequence[Interval]
    operators: Sequence[Interval]
    """On the host, each with the time that is its own."""

    @classmethod
    def of(cls, events: Sequence[Event], device: torch.device) -> Seen:
        """Read a trace in Chrome's format, as torch's profiler writes it."""
        operators = list(_intervals(events, "cpu_op"))
        own = own_times(operators)
        if device.type == "cuda":
            kernels = list(_on_gpu(events, device.index or 0))
            return cls(kernels, kernels, own)
        annotations = list(_intervals(events, "user_annotation"))
        collectives = [each for each in annotations if is_communication(each.name)]
        loading = [each for each in annotations if each.name.startswith(LOADER)]
        ran = [each for each in operators if not is_communication(each.name) and not _inside(each, loading)]
        return cls([*ran, *collectives], [], own)

    def busy(self, updates: int) -> Busy:
        """Seconds an update."""
        found = busy(self.ran)
        return Busy(found.compute_s / updates, found.communication_s / updates, found.exposed_s / updates)


def summarise(by_rank: Sequence[Breakdown], seen: Seen, updates: int) -> dict[str, Any]:
    """Verdict, breakdown of each rank, and what took longest on this one.

    The verdict is that of the rank which waits least for others: the others' communication is waiting for it.
    """
    slowest = min(range(len(by_rank)), key=lambda rank: by_rank[rank].exposed_s)
    return {
        "verdict": by_rank[slowest].verdict,
        "message": by_rank[slowest].describe(),
        "slowest_rank": slowest,
        "breakdown": [each.to_json() for each in by_rank],
        "kernels": top(seen.kernels, MOST_NAMES, updates),
        "operators": top(seen.operators, MOST_NAMES, updates),
    }


def compress(raw: Path, target: Path) -> None:
    """Write a gzipped copy of a file, whole or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with raw.open("rb") as source, gzip.open(temporary, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(source, packed)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def _intervals(events: Sequence[Event], *categories: str) -> Iterator[Interval]:
    """Complete events of these categories; the trace counts in microseconds."""
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in categories:
            begin = float(event["ts"]) * 1e-6
            yield Interval(str(event["name"]), event["tid"], begin, begin + float(event.get("dur", 0)) * 1e-6)


def _on_gpu(events: Sequence[Event], device: int) -> Iterator[Interval]:
    """What ran on one GPU, but for batches on their way to it: those are not what it is there for."""
    own = [event for event in events if event.get("args", {}).get("device") == device]
    for interval in _intervals(own, "kernel", "gpu_memcpy", "gpu_memset"):
        if "HtoD" not in interval.name:
            yield interval


def _inside(interval: Interval, outer: Sequence[Interval]) -> bool:
    return any(
        each.stream == interval.stream and each.begin <= interval.begin and interval.end <= each.end for each in outer
    )
