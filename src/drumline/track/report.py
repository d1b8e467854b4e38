"""`drumline report`: one HTML page and PNGs from a run directory, whatever of it is there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from drumline.rundir import RunDir, read_json, read_lines, write_atomic
from drumline.track.gpu_records import labels_of, spent_by
from drumline.track.profile_page import SUMMARY
from drumline.track.protocol import RECORD_KEYS
from drumline.track.units import as_finite, as_float, highest

if TYPE_CHECKING:
    from drumline.track.figures import Plot

Record = dict[str, Any]

MEMORY = ("memory_peak_bytes", "memory_resident_bytes")
"""What a run's memory is, on GPU and on CPU."""


@dataclass(frozen=True)
class RunRecords:
    """What a run directory holds; missing files are empty, unreadable ones are named in `notes`."""

    name: str
    config: str
    settings: Record
    """config.yaml, read; empty where it is missing or broken."""
    plan: Record
    env: Record
    end: Record
    """exit.json; empty while the run goes on, or where it was killed."""
    train: list[Record]
    evals: list[Record]
    events: list[Record]
    notes: list[str] = field(default_factory=list)
    profile: Record = field(default_factory=dict)
    """What train.profile saw; empty without it."""
    gpus: list[Record] = field(default_factory=list)
    """What was recorded of the GPUs of all machines."""


@dataclass(frozen=True)
class Summary:
    """The headline numbers of a run; None where the files do not say."""

    status: str
    """What exit.json gives as reason, or that it gives none."""
    exit_status: int | None
    message: str
    steps: int | None
    """Completed updates."""
    total_steps: int | None
    last_eval_loss: float | None
    best_eval_loss: float | None
    best_eval_step: int | None
    last_eval_metrics: dict[str, float | None]
    """The last evaluation's metrics besides the loss; None: not finite."""
    last_train_loss: float | None
    duration_s: float | None
    units_per_s: float | None
    """Median over the log lines, so that the first updates and a pause do not count."""
    unit: str
    mfu: float | None
    """Median over the log lines."""
    memory_bytes: float | None
    """Highest over log lines and ranks: of a GPU's tensors, or of a process on CPU."""
    energy_j: float | None = None
    """Of the run's GPUs over all attempts, as are the next two; None where nothing was recorded."""
    gpu_s: float | None = None
    cost: float | None = None
    """By monitor.price_per_kwh and monitor.price_per_gpu_hour; None where neither is set."""


def read_run(run: Path) -> RunRecords:
    """Read a run directory. A broken file costs its own part only: what is readable before the break is kept."""
    paths = RunDir(run)
    notes: list[str] = []
    metrics = _lines(paths.metrics, notes)
    config = paths.config.read_text(encoding="utf-8", errors="replace") if paths.config.exists() else ""
    settings = _settings(config, notes)
    return RunRecords(
        name=str(settings.get("name") or run.resolve().name),
        config=config,
        settings=settings,
        plan=_document(paths.plan, notes),
        env=_document(paths.env, notes),
        end=_document(paths.exit, notes),
        train=[record for record in metrics if record.get("kind") == "train"],
        evals=[record for record in metrics if record.get("kind") == "eval"],
        events=_events(paths, notes),
        notes=notes,
        profile=_document(paths.profile / SUMMARY, notes),
        gpus=[
            record for record in (*metrics, *_of_other_machines(paths, "gpus", notes)) if record.get("kind") == "gpu"
        ],
    )


def summarise(records: RunRecords) -> Summary:
    """Take the headline numbers from a run's records; values that are not finite never count as best."""
    exit_status = records.end.get("exit_status")
    losses = [(loss, record) for record in records.evals if (loss := as_finite(record.get("loss"))) is not None]
    best, best_record = min(losses, key=lambda pair: pair[0], default=(None, Record()))
    measured = [*records.train, *records.evals]
    speed = "units_per_s" if any("units_per_s" in record for record in records.train) else "samples_per_s"
    units = [str(record["unit"]) for record in records.train if record.get("unit")]
    memory = (highest(record.get(key)) for record in records.train for key in MEMORY)
    steps = [_whole(records.end.get("steps")), *(_whole(record.get("step")) for record in measured)]
    spent = spent_by(records.gpus)
    return Summary(
        status=str(records.end.get("reason", "no end on record: it is still running, or was killed")),
        exit_status=exit_status if isinstance(exit_status, int) else None,
        message=str(records.end.get("message", "")),
        steps=max((step for step in steps if step is not None), default=None),
        total_steps=_whole(records.plan.get("steps")),
        last_eval_loss=as_finite(records.evals[-1].get("loss")) if records.evals else None,
        best_eval_loss=best,
        best_eval_step=_whole(best_record.get("step")),
        last_eval_metrics=_metrics(records.evals[-1]) if records.evals else {},
        last_train_loss=as_finite(records.train[-1].get("loss")) if records.train else None,
        duration_s=max(_finite(measured, "elapsed_s"), default=None),
        units_per_s=_median(_finite(records.train, speed)),
        unit=units[0] if units and speed == "units_per_s" else "samples",
        mfu=_median(_finite(records.train, "mfu")),
        memory_bytes=max((value for value in memory if value is not None), default=None),
        energy_j=None if spent is None else spent.energy_j,
        gpu_s=None if spent is None else spent.gpu_s,
        cost=None if spent is None else spent.cost or None,
    )


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write index.html and the PNGs into `out` (RUN/report unless given) and return the page's path.

    The page is whole in itself: it loads nothing. Raises MissingExtra without matplotlib.
    """
    from drumline.track.gpu_plots import draw_gpus
    from drumline.track.plots import draw_plots
    from drumline.track.report_page import render_page

    records = read_run(run)
    plots = draw_plots(records.train, records.evals, str(records.plan.get("device", "unknown")))
    gpus = draw_gpus(records.train, records.gpus, labels_of(records.gpus, records.env))
    svgs = ([plot.svg for plot in each] for each in (plots, gpus))
    page = render_page(records, summarise(records), *svgs)
    return write_page(out if out is not None else run / "report", page, [*plots, *gpus])


def write_page(folder: Path, page: str, plots: Sequence[Plot]) -> Path:
    """Write index.html and a PNG for each plot into the folder, which is made; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        write_atomic(folder / f"{plot.name}.png", plot.png)
    index = folder / "index.html"
    write_atomic(index, page)
    return index


def _document(path: Path, notes: list[str]) -> Record:
    if not path.exists():
        return {}
    try:
        document = read_json(path)
    except ValueError as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return {}
    return document if isinstance(document, dict) else {"value": document}


def _lines(path: Path, notes: list[str]) -> list[Record]:
    records: list[Record] = []
    try:
        for record in read_lines(path):
            if isinstance(record, dict):
                records.append(record)
    except ValueError as error:
        notes.append(f"{path.name} is broken after {len(records)} records, the rest is not shown: {error}")
    return records


def _events(paths: RunDir, notes: list[str]) -> list[Record]:
    """Of all machines, in the order of time where there are several."""
    own, others = _lines(paths.events, notes), _of_other_machines(paths, "events", notes)
    return sorted((*own, *others), key=lambda event: as_finite(event.get("time")) or 0.0) if others else own


def _of_other_machines(paths: RunDir, what: str, notes: list[str]) -> list[Record]:
    return [record for path in sorted(paths.logs.glob(f"{what}_*.jsonl")) for record in _lines(path, notes)]


def _settings(config: str, notes: list[str]) -> Record:
    try:
        document = yaml.safe_load(config)
    except yaml.YAMLError as error:
        notes.append(f"config.yaml cannot be read: {error}")
        return {}
    return document if isinstance(document, dict) else {}


def _metrics(record: Record) -> dict[str, float | None]:
    return {k: as_finite(v) for k, v in record.items() if k not in RECORD_KEYS and as_float(v) is not None}


def _finite(records: list[Record], key: str) -> list[float]:
    return [value for record in records if (value := as_finite(record.get(key))) is not None]


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _whole(value: Any) -> int | None:
    number = as_finite(value)
    return int(number) if number is not None else None
