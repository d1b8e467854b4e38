"""What Prometheus is told of the service: the machine's metrics as `drumline monitor` has them, and the queue's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drumline.jobs.records import ACTIVE_STATES, END_STATES, Job, State
from drumline.jobs.store import Store
from drumline.monitor.metrics_table import Row
from drumline.monitor.prometheus import Collector, expose
from drumline.monitor.runs import RunsOnThisMachine
from drumline.monitor.sampler import Sampler

if TYPE_CHECKING:
    from drumline.monitor.prometheus import Family
    from drumline.service.machine import Machine

QUEUED: frozenset[State] = frozenset({"queued"})
STATES: tuple[State, ...] = ("queued", *sorted(ACTIVE_STATES), *sorted(END_STATES))


@dataclass(frozen=True)
class QueueFacts:
    """The queue at one moment."""

    counts: Mapping[State, int]
    longest_wait_s: float
    """Of this machine's jobs."""
    leases: int
    streams: int


QUEUE_ROWS: tuple[Row[QueueFacts], ...] = (
    Row(
        "drumline_jobs",
        "",
        "Jobs that the store has, by state.",
        lambda facts: {(state,): float(facts.counts.get(state, 0)) for state in STATES},
        labels=("state",),
    ),
    Row(
        "drumline_queue_wait_seconds",
        "seconds",
        "How long the job of this machine that waits longest has waited; 0 where none does.",
        lambda facts: facts.longest_wait_s,
    ),
    Row("drumline_leases", "", "Devices of this machine that jobs hold.", lambda facts: float(facts.leases)),
    Row("drumline_streams", "", "Streams of events that are open.", lambda facts: float(facts.streams)),
)


class ServiceCollector(Collector):
    """A collector that tells of the queue too."""

    def __init__(self, machine: Machine, queue: Callable[[], QueueFacts]) -> None:
        """Raises MissingExtra without prometheus-client."""
        self._sampler_of_machine = Sampler(source=lambda: machine.look().snapshot)
        self._queue = queue
        super().__init__(self._sampler_of_machine, RunsOnThisMachine(), verdicts=lambda: machine.look().verdicts)

    def describe(self) -> Iterator[Family]:
        """Every metric without values."""
        yield from super().describe()
        yield from (self._family(row, ()) for row in QUEUE_ROWS)

    def collect(self) -> Iterator[Family]:
        """Every metric that has a value now."""
        self._sampler_of_machine.look()  # waits as long as the machine does, which has a limit
        yield from super().collect()
        yield from self._families(QUEUE_ROWS, (), [((), self._queue())])

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Everything as text, and its content type."""
        return expose(self, accept)


def queue_facts(store: Store, node: str, streams: int) -> QueueFacts:
    """What the store says of the queue. Raises StoreError."""
    counts, now = store.jobs.counts(), time.time()
    queued: tuple[Job, ...] = ()
    if counts.get("queued"):
        with store.change() as change:
            queued = change.jobs(QUEUED, node)
    longest_s = max((now - job.queued_since for job in queued), default=0.0)
    return QueueFacts(counts, longest_s, len(store.leases.all(node)), streams)
