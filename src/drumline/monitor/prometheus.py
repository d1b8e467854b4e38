"""The collector: yields at scrape time what the sampler saw last. The one file that knows prometheus-client."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from drumline.errors import MissingExtra
from drumline.monitor.gpu_metrics import GPU_ROWS, HEALTH_ROWS, XID_ROWS
from drumline.monitor.metrics_table import GPU_LABELS, RUN_LABELS, SOURCE_ROWS, WATCH_ROWS, Row, Watch
from drumline.monitor.run_metrics import RUN_ROWS
from drumline.monitor.sampler import Sampler
from drumline.monitor.slow_source import SlowSource

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from drumline.hardware.health import Verdict
    from drumline.monitor.runs import RunFacts

    Family = CounterMetricFamily | GaugeMetricFamily

STALE_S = 300.0
"""Values older than this are left out; Prometheus itself forgets what it has not seen for as long."""

Subject = TypeVar("Subject")
XidCounts = Mapping[tuple[str | None, int], int]
"""By UUID of the GPU (None: not known) and code, how many came since the listener was started."""


class Collector:
    """What prometheus-client's registries take: `registry.register(Collector(sampler))`.

    runs, xids, verdicts: asked at each scrape, each within SlowSource's limit; one that hangs or fails is told by its
    age, and holds nothing up. Raises MissingExtra without prometheus-client.
    """

    def __init__(
        self,
        sampler: Sampler,
        runs: Callable[[], Sequence[RunFacts]] | None = None,
        xids: Callable[[], XidCounts] | None = None,
        verdicts: Callable[[], Mapping[str, Verdict]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        client = _client("core")
        self._makers = {"gauge": client.GaugeMetricFamily, "counter": client.CounterMetricFamily}
        self._sampler = sampler
        self._clock = clock
        self._began = clock()
        readers: dict[str, Callable[[], Any] | None] = {"runs": runs, "xids": xids, "verdicts": verdicts}
        self._sources = {name: SlowSource(read, clock=clock) for name, read in readers.items() if read is not None}
        self._names: dict[str, str] = {}

    def describe(self) -> Iterator[Family]:
        """Every metric without values: registries compare the names with those of other collectors."""
        for rows in (WATCH_ROWS, SOURCE_ROWS, GPU_ROWS, HEALTH_ROWS, XID_ROWS, RUN_ROWS):
            yield from (self._family(row, ()) for row in rows)

    def collect(self) -> Iterator[Family]:
        """Every metric that has a value now."""
        age_s = self._sampler.age_s()
        watch = Watch(
            self._sampler.latest,
            self._clock() - self._began if age_s is None else age_s,
            self._sampler.overruns,
            self._sampler.stuck,
        )
        samples = watch.snapshot.gpus if watch.snapshot is not None and watch.age_s <= STALE_S else ()
        runs: Sequence[RunFacts] = [run for run in self._read("runs") or () if run.here]
        verdicts: Mapping[str, Verdict] = self._read("verdicts") or {}
        counts: XidCounts = self._read("xids") or {}
        mentioned = [*verdicts, *(uuid for uuid, _ in counts)]
        if "xids" in self._sources and not (watch.snapshot is not None and watch.snapshot.no_gpu):
            mentioned.append("")  # an XID of an unknown GPU has no UUID; its counter is there from the start too
        names = self._name({sample.gpu.uuid: sample.gpu.name for sample in samples}, mentioned)

        yield from self._families(WATCH_ROWS, (), [((), watch)])
        ages = {name: source.age_s() for name, source in self._sources.items()}
        yield from self._families(SOURCE_ROWS, (), [((), ages)])
        yield from self._families(GPU_ROWS, GPU_LABELS, [((s.gpu.uuid, s.gpu.name), s) for s in samples])
        # A MIG instance has its GPU's verdict, and one fault is told once.
        parts = {s.gpu.uuid for s in (watch.snapshot.gpus if watch.snapshot else ()) if s.gpu.parent in verdicts}
        of_verdicts = [((uuid, names[uuid]), verdict) for uuid, verdict in verdicts.items() if uuid not in parts]
        yield from self._families(HEALTH_ROWS, GPU_LABELS, of_verdicts)
        if "xids" in self._sources:
            by_gpu: dict[str, Counter[int]] = {uuid: Counter() for uuid in names}
            for (uuid, code), count in counts.items():
                by_gpu[uuid or ""][code] += count
            of_xids = [((uuid, names[uuid]), codes) for uuid, codes in by_gpu.items()]
            yield from self._families(XID_ROWS, GPU_LABELS, of_xids)
        times = Counter(run.name for run in runs)
        of_runs = [((run.name if times[run.name] == 1 else str(run.path),), run) for run in runs]
        yield from self._families(RUN_ROWS, RUN_LABELS, of_runs)

    def _read(self, source: str) -> Any:
        """What a source says; None where there is no such source, or nothing that is fresh."""
        if source not in self._sources:
            return None
        value = self._sources[source].get()
        return value if self._sources[source].age_s() <= STALE_S else None

    def _name(self, seen: Mapping[str, str], mentioned: Iterable[str | None]) -> dict[str, str]:
        """Names by UUID, also of GPUs that are lost; only of those that something is told of, so it never grows."""
        told = {uuid or "": self._names.get(uuid or "", "unknown") for uuid in mentioned}
        self._names = {**told, **seen}
        return self._names

    def _family(self, row: Row[Any], labels: Sequence[str]) -> Family:
        family: Family = self._makers[row.kind](row.name, row.help, labels=[*labels, *row.labels], unit=row.unit)
        return family

    def _families(
        self, rows: Iterable[Row[Subject]], labels: Sequence[str], subjects: Sequence[tuple[tuple[str, ...], Subject]]
    ) -> Iterator[Family]:
        """The metrics of a table, each with its values for every subject; one without any is left out."""
        for row in rows:
            family = self._family(row, labels)
            for own, subject in subjects:
                value = row.read(subject)
                values = value if isinstance(value, Mapping) else {} if value is None else {(): value}
                for more, number in values.items():
                    family.add_metric([*own, *more], number)
            if family.samples:
                yield family


def expose(collector: Collector, accept: str = "") -> tuple[bytes, str]:
    """Everything as text for an HTTP answer, and its content type: OpenMetrics where the header Accept asks for it."""
    encode, content_type = _client("exposition").choose_encoder(accept)
    return encode(collector), content_type


def _client(module: str) -> Any:
    try:
        return importlib.import_module(f"prometheus_client.{module}")
    except ImportError:
        raise MissingExtra("prometheus-client", "serve") from None
