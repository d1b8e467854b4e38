"""Tables of processes on GPUs and of runs on this machine. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from drumline.hardware.records import GpuSample
from drumline.monitor import words
from drumline.monitor.scene import Look, Scene, labels

if TYPE_CHECKING:
    from drumline.monitor.runs import RunFacts

_STATE_STYLES = {"running": "green", "failed": "bold red", "killed": "bold red", "interrupted": "yellow"}

WIDE, WIDEST = 100, 140
"""Widths from which on a run's rarer numbers are shown too."""


def process_table(scene: Scene, samples: Sequence[GpuSample], look: Look) -> RenderableType:
    """Who is on these GPUs, the largest of each first."""
    rows = list(_processes(scene, samples))
    if not rows:
        return Text("no process is on a GPU, or this user may not see it")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in ("GPU", "pid", "user", "GiB", "", "name"):
        table.add_column(
            title, no_wrap=True, overflow="ellipsis", justify="right" if title in ("pid", "GiB") else "left"
        )
    for row in rows:
        table.add_row(*row)
    return table


def _processes(scene: Scene, samples: Sequence[GpuSample]) -> Iterator[list[Text]]:
    names = labels(scene.snapshot.gpus)
    for sample in samples:
        for process in sorted(sample.processes or (), key=lambda each: each.memory_bytes or 0, reverse=True):
            cells = (
                names[sample.gpu.uuid],
                str(process.pid),
                process.user or words.UNKNOWN,
                words.gib(process.memory_bytes),
                "ours" if process.ours else "",
                process.name or "not seen from here",
            )
            yield [Text(cell) for cell in cells]


def run_table(scene: Scene, look: Look) -> RenderableType:
    """The runs of this machine, a line each."""
    if not scene.runs:
        return Text("no run goes on here, and none has ended within the hour")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    titles = ["run", "state", "update", "loss", "last line", "left"]
    titles += ["speed", "cost", "GPUs"] if look.width >= WIDE else []
    titles += ["eval loss", "MFU", "alerts"] if look.width >= WIDEST else []
    for title in titles:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for run in scene.runs:
        silent = f"{words.span(run.step_age_s)} ago" if run.step_age_s is not None else words.UNKNOWN
        cells = [
            Text(run.name),
            Text(run.state, style=_STATE_STYLES.get(run.state, "")),
            Text(_place(run)),
            Text(words.number(run.loss)),
            Text(silent),
            Text(words.span(run.eta_s)),
        ]
        alerts = Text(", ".join(run.alerts) or "none", style="yellow" if run.alerts else "")
        cells += [Text(_speed(run)), Text(_cost(run)), Text(_gpus(scene, run))]
        cells += [Text(words.number(run.eval_loss)), Text(words.percent(run.mfu)), alerts]
        table.add_row(*cells[: len(titles)])
    return table


def run_words(run: RunFacts) -> str:
    """A run in one line: `small: running, update 120 of 400, loss 2.31, ...`."""
    parts: list[str] = [run.state]
    parts += [f"update {_place(run)}"] if run.step is not None else []
    parts += [f"loss {words.number(run.loss)}"] if run.loss is not None else []
    parts += [_speed(run)] if run.units_per_s is not None else []
    parts += [f"last line {words.span(run.step_age_s)} ago"] if run.step_age_s is not None else []
    parts += [f"{words.span(run.eta_s)} left"] if run.eta_s is not None else []
    parts += [f"cost {run.cost:.2f}"] if run.cost else []
    parts += [f"alerts {', '.join(run.alerts)}"] if run.alerts else []
    parts += [run.message.splitlines()[0]] if run.message and run.state not in ("running", "done") else []
    return f"{run.name}: {', '.join(parts)}"


def _place(run: RunFacts) -> str:
    if run.step is None:
        return words.UNKNOWN
    return f"{run.step:,}" + (f" of {run.total_steps:,}" if run.total_steps is not None else "")


def _speed(run: RunFacts) -> str:
    return words.UNKNOWN if run.units_per_s is None else f"{words.number(run.units_per_s)} {run.unit}/s"


def _cost(run: RunFacts) -> str:
    return f"{run.cost:.2f}" if run.cost else words.UNKNOWN


def _gpus(scene: Scene, run: RunFacts) -> str:
    names = labels(scene.snapshot.gpus)
    return ", ".join(names.get(uuid, "another") for uuid in run.gpus) or words.UNKNOWN
