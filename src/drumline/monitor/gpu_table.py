"""The table of GPUs: as many columns as the terminal has room for, and what is to be said about single ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.style import Style
from rich.table import Table
from rich.text import Text

from drumline.hardware.records import GpuSample
from drumline.monitor import words
from drumline.monitor.bars import bar, resample, sparkline
from drumline.monitor.scene import Look, Scene, labels

STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

NEAR_SLOWDOWN_C = 5.0
"""How far below the temperature at which the hardware slows down a temperature is marked."""

TREND_S = 120.0
"""How far back the small curve of a table goes."""

GAP = 2
NARROW = 64
"""From this width on there is more than one blank between two columns."""


@dataclass(frozen=True)
class Column:
    """A column: what it holds for a GPU, how wide it is, and how readily it is left out where there is little room."""

    title: str
    width: int
    rank: int
    """The columns with the lowest ranks stay."""
    cell: Callable[[GpuSample, Scene, Look], Text]
    right: bool = False


def short_name(name: str) -> str:
    """A GPU's name without its maker."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def gpu_table(
    scene: Scene,
    samples: Sequence[GpuSample],
    look: Look,
    *,
    marked: str | None = None,
    sort: str = "",
    trend: bool = False,
) -> Table:
    """One line a GPU.

    marked: UUID of the one that is chosen. sort: name of the order, whose column has its title in capitals. trend: with
    a curve of its use.
    """
    gap = GAP if look.width >= NARROW else 1
    columns = fitting(look, gap, [column for column in COLUMNS if trend or column.title != "last 2 min"], scene)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        title = column.title.upper() if column.title == _SORTED.get(sort) else column.title
        table.add_column(
            Text(title),
            width=column.width,
            no_wrap=True,
            justify="right" if column.right else "left",
            overflow="ellipsis",
        )
    names = labels(scene.snapshot.gpus)
    for sample in samples:
        chosen = sample.gpu.uuid == marked
        label = Text(f"{'>' if chosen else ' ' if marked else ''}{names.get(sample.gpu.uuid, '?')}")
        cells = [column.cell(sample, scene, look) if column.title != "GPU" else label for column in columns]
        table.add_row(*cells, style=Style(bold=True) if chosen else "")
    return table


def fitting(look: Look, gap: int, columns: Sequence[Column], scene: Scene) -> list[Column]:
    """The columns for which there is room, those with low ranks first; none that would be empty on all lines."""
    room = look.width + gap
    kept = []
    for column in sorted(columns, key=lambda column: column.rank):
        filled = column.rank == 0 or any(
            column.cell(sample, scene, look).plain.strip() not in ("", words.UNKNOWN) for sample in scene.snapshot.gpus
        )
        if filled and column.width + gap <= room:
            room -= column.width + gap
            kept.append(column)
    return [column for column in columns if column in kept]


def notes(scene: Scene, samples: Sequence[GpuSample]) -> Iterator[tuple[str, str, str]]:
    """What is to be said about single GPUs as (label, status, sentence), the worst of each first."""
    names = labels(scene.snapshot.gpus)
    for sample in samples:
        label = names.get(sample.gpu.uuid, "?")
        verdict = scene.verdicts.get(sample.gpu.uuid)
        for finding in verdict.findings if verdict is not None else ():
            action = f"; {finding.action}" if finding.action else ""
            yield label, finding.status, f"{finding.message}{action}"
        if sample.throttled_by and verdict is None:  # a verdict tells of it, or that it is harmless
            yield label, "note", f"slowed down by {', '.join(sample.throttled_by)}"


def _use(sample: GpuSample, scene: Scene, look: Look) -> Text:
    return _with_bar(sample.utilization, words.percent(sample.utilization).rjust(4), 8, look, "cyan")


def _memory(sample: GpuSample, scene: Scene, look: Look) -> Text:
    used, whole = sample.memory_used_bytes, sample.gpu.memory_bytes
    share = None if used is None or not whole else used / whole
    return _with_bar(share, words.used_of(used, whole).rjust(9), 6, look, "magenta")


def _with_bar(share: float | None, text: str, width: int, look: Look, style: str) -> Text:
    return Text.assemble((bar(share, width, look.ascii_only), style), " ", text)


def _power(sample: GpuSample, scene: Scene, look: Look) -> Text:
    return Text(words.watts(sample.power_w, sample.power_limit_w))


def _temperature(sample: GpuSample, scene: Scene, look: Look) -> Text:
    temperature, limit = sample.temperature_c, sample.slowdown_temperature_c
    hot = temperature is not None and limit is not None and temperature >= limit - NEAR_SLOWDOWN_C
    # The mark says it too: colours are not everybody's.
    return Text(f"{words.celsius(temperature)}{'!' if hot else ''}", style="bold red" if hot else "")


def _pipes(name: str) -> Callable[[GpuSample, Scene, Look], Text]:
    def cell(sample: GpuSample, scene: Scene, look: Look) -> Text:
        return Text(words.percent(None if sample.pipes is None else getattr(sample.pipes, name)))

    return cell


def _health(sample: GpuSample, scene: Scene, look: Look) -> Text:
    verdict = scene.verdicts.get(sample.gpu.uuid)
    if verdict is None:
        return Text(words.UNKNOWN)
    return Text(verdict.status, style=STATUS_STYLES.get(verdict.status, ""))


def _clock(sample: GpuSample, scene: Scene, look: Look) -> Text:
    if sample.sm_clock_mhz is None:
        return Text(words.UNKNOWN)
    return Text(f"{sample.sm_clock_mhz} MHz{'!' if sample.throttled_by else ''}")


def _pcie(sample: GpuSample, scene: Scene, look: Look) -> Text:
    if sample.pcie_generation is None or sample.pcie_width is None:
        return Text(words.UNKNOWN)
    # An idle GPU lowers the generation to save power, so that only a narrower link is marked.
    narrow = sample.max_pcie_width is not None and sample.pcie_width < sample.max_pcie_width
    return Text(f"{sample.pcie_generation} x{sample.pcie_width}{'!' if narrow else ''}")


def _nvlink(sample: GpuSample, scene: Scene, look: Look) -> Text:
    rates = []
    for name in ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"):
        points = list(scene.series(sample.gpu.uuid, name))
        rates += [points[-1][1]] if points else []
    links = scene.nvlinks.get(sample.gpu.parent or sample.gpu.uuid)
    return Text(words.speed(sum(rates)) if rates else f"{links} links" if links else words.UNKNOWN)


def _trend(sample: GpuSample, scene: Scene, look: Look) -> Text:
    points = ((-age, value) for age, value in scene.series(sample.gpu.uuid, "utilization"))
    return Text(sparkline(resample(points, 0.0, TREND_S, 20), 1.0, look.ascii_only), style="cyan")


def _activity(sample: GpuSample, scene: Scene, look: Look) -> Text:
    activity = scene.activity(sample)
    return Text(words.UNKNOWN if activity == "unknown" else activity)


def _who(sample: GpuSample, scene: Scene, look: Look) -> Text:
    if not sample.processes:
        return Text(words.UNKNOWN if sample.processes is None else "nobody")
    first = max(sample.processes, key=lambda process: process.memory_bytes or 0)
    more = f" +{len(sample.processes) - 1}" if len(sample.processes) > 1 else ""
    parts = (first.name or "unknown", str(first.pid), first.user, "(ours)" if first.ours else None)
    return Text(" ".join(part for part in parts if part) + more)


def _name(sample: GpuSample, scene: Scene, look: Look) -> Text:
    """Blank where all have the same, which the headline has."""
    alike = len({each.gpu.name for each in scene.snapshot.gpus}) == 1
    return Text("" if alike else short_name(sample.gpu.name))


def _text(get: Callable[[GpuSample], Any]) -> Callable[[GpuSample, Scene, Look], Text]:
    return lambda sample, scene, look: Text(str(get(sample)))


COLUMNS = (
    Column("GPU", 4, 0, _text(lambda sample: sample.gpu.index)),
    Column("name", 22, 3, _name),
    Column("use", 13, 0, _use),
    Column("SM", 4, 4, _pipes("sm_active"), right=True),
    Column("tensor", 6, 5, _pipes("tensor_active"), right=True),
    Column("doing", 13, 6, _activity),
    Column("last 2 min", 20, 7, _trend),
    Column("memory GiB", 16, 0, _memory),
    Column("power", 9, 1, _power, right=True),
    Column("heat", 5, 1, _temperature, right=True),
    Column("clock", 9, 11, _clock, right=True),
    Column("PCIe", 6, 9, _pcie, right=True),
    Column("NVLink", 10, 10, _nvlink, right=True),
    Column("health", 6, 0, _health),
    Column("who", 28, 8, _who),
)
_SORTED = {"use": "use", "memory": "memory GiB", "power": "power", "temperature": "heat", "health": "health"}
