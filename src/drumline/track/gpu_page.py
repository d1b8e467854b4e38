"""What a run's page says of its GPUs and of the alarms that they and the run have raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drumline.track.gpu_records import PhaseSummary, Record, phases_of, summaries_of
from drumline.track.page import Row, section, table
from drumline.track.units import as_text, duration, size


def gpu_sections(gpus: Sequence[Record], env: Record) -> Iterator[str]:
    """A table with a row a GPU; nothing without records of GPUs."""
    if not gpus:
        return
    headers = ["", "kernels ran", "SMs at work", "tensor cores", "memory, most", "power", "temperature, highest"]
    rows: list[Row] = [
        (
            [
                gpu.label,
                _share(gpu.utilization),
                _share(gpu.sm_active),
                _share(gpu.tensor_active),
                "" if gpu.memory_bytes is None else size(gpu.memory_bytes),
                "" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
                "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
            ],
            "",
        )
        for gpu in summaries_of(gpus, env)
    ]
    yield section("GPUs", table(headers, rows, keys=1))
    phases = phases_of(gpus)
    if len(phases) > 1:
        yield section("GPUs by phase", _phases(phases))


def _phases(phases: Sequence[PhaseSummary]) -> str:
    headers = ["", "time", "kernels ran", "SMs at work", "power a GPU"]
    rows: Iterator[Row] = (
        (
            [
                each.phase,
                duration(each.seconds),
                _share(each.utilization),
                _share(each.sm_active),
                "" if each.power_w is None else f"{each.power_w:.0f} W",
            ],
            "",
        )
        for each in phases
    )
    return table(headers, rows, keys=1)


def alert_sections(events: Sequence[Record], start: float | None) -> Iterator[str]:
    """A table of alerts, the newest last; nothing where there was none."""
    found = [event for event in events if event.get("event") == "alert"]
    if not found:
        return

    def row(event: Record) -> Row:
        time = event.get("time")
        since = f"+{time - start:.0f} s" if isinstance(time, int | float) and start is not None else ""
        state = str(event.get("state", ""))
        cells = [since, state, *(as_text(event.get(key, "")) for key in ("severity", "subject", "message", "action"))]
        return cells, "" if state == "resolved" else "warn"

    headers = ("time", "", "severity", "of", "what", "what to do")
    yield section("Alerts", table(headers, map(row, found), keys=3))


def energy(joules: float) -> str:
    """Joules as kilowatt hours, small ones as watt hours."""
    hours = joules / 3600
    return f"{hours / 1000:,.2f} kWh" if hours >= 1000 else f"{hours:.2f} Wh"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f}%"
