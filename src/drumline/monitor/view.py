"""The live view as Rich renderables, whole screens from a Scene; and the same as plain lines for logs. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from drumline.hardware.occupants import occupants
from drumline.hardware.records import GpuSample, Snapshot
from drumline.monitor import words
from drumline.monitor.gpu_detail import gpu_detail
from drumline.monitor.gpu_table import STATUS_STYLES, gpu_table, notes, short_name
from drumline.monitor.run_table import process_table, run_table, run_words
from drumline.monitor.scene import SORTS, VIEWS, Look, Scene, ViewState, labels, ordered, selected

SEVERITY_STYLES = {"info": "", "warning": "yellow", "critical": "bold red"}

ALL_VIEWS = 76
"""Width from which on the last line names all views."""

STALE_S = 10.0
"""Age from which a snapshot is told to be old though the driver was not found to hang."""

HELP = (
    ("q", "leave"),
    ("1 to 5, tab", "overview, one GPU, processes, runs, health"),
    ("up, down", "choose a GPU; enter shows it, escape leads back"),
    ("s, r", "sort by another column; the other way round"),
    ("space, p", "hold the picture still"),
    ("?", "this page"),
)


def screen(scene: Scene, state: ViewState, look: Look) -> RenderableType:
    """A whole screen: a headline, what was chosen, and the keys; exactly as many lines as `look` has, if it says so."""
    head = [headline(scene, look, paused=state.paused), *warnings(scene)]
    if look.height is None:
        return Group(*head, *_body(scene, state, look))
    room = max(look.height - len(head) - 1, 1)
    body = help_lines() if state.help else _body(scene, state, replace(look, height=room))
    return Page(Group(*head), Group(*body), keys_line(state, look), look.height)


@dataclass(frozen=True)
class Page:
    """Head and foot stay; what is between them is cut, and says so, or filled up with empty lines."""

    head: RenderableType
    body: RenderableType
    foot: RenderableType
    height: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich's protocol."""
        parts = (self.head, self.body, self.foot)
        head, body, foot = (console.render_lines(part, options.update(height=None), pad=False) for part in parts)
        room = max(self.height - len(head) - len(foot), 1)
        if len(body) > room:
            body = [*body[: room - 1], [Segment(f"... {len(body) - room + 1} more lines")]]
        body += [[]] * (room - len(body))
        for place, line in enumerate([*head, *body, *foot]):
            yield from [Segment.line()] if place else []
            yield from line


def headline(scene: Scene, look: Look, *, paused: bool = False) -> Text:
    """Machine, time, number of GPUs, power, cost; cut where the terminal is narrow."""
    samples = scene.snapshot.gpus
    parts = [scene.hostname, time.strftime("%H:%M:%S", time.localtime(scene.now))]
    if samples:
        parts.append(f"{len(samples)} {_kind(samples)}")
        powers = [sample.power_w for sample in samples if sample.power_w is not None and sample.gpu.parent is None]
        parts += [f"{sum(powers):,.0f} W"] if powers else []
        parts += [f"{scene.price_per_hour:.2f} an hour"] if scene.price_per_hour else []
        parts.append(scene.snapshot.source)
    text = Text("PAUSED " if paused else "", style="bold", no_wrap=True, overflow="ellipsis")
    return text.append("  ".join(part for part in parts if part))


def _kind(samples: Sequence[GpuSample]) -> str:
    names = {short_name(sample.gpu.name) for sample in samples}
    return f"x {names.pop()}" if len(names) == 1 else "GPUs"


def warnings(scene: Scene) -> Iterator[Text]:
    """Lines that stand above everything: no GPU, a driver that hangs, GPUs that were left out."""
    if not scene.snapshot.gpus:
        yield Text(absence(scene.snapshot), style="" if scene.snapshot.no_gpu else "bold red")
    elif scene.stuck is not None:
        yield Text(f"{scene.stuck}; these values are {words.span(scene.age_s)} old", style="bold red")
    elif scene.age_s > STALE_S:
        yield Text(f"these values are {words.span(scene.age_s)} old", style="yellow")
    for problem in scene.snapshot.problems:
        yield Text(problem, style="yellow")
    if scene.note:
        yield Text(scene.note, no_wrap=True, overflow="ellipsis")


def absence(snapshot: Snapshot) -> str:
    """Why there is no GPU to show, in one line."""
    return f"{'no GPU' if snapshot.no_gpu else 'GPUs cannot be read'}: {snapshot.source}"


def keys_line(state: ViewState, look: Look) -> Text:
    """How to leave, what can be shown, and what is shown."""
    text = Text("q quit  ? help ", no_wrap=True, overflow="ellipsis")
    for number, view in enumerate(VIEWS, 1):
        current = view == state.view
        if current or look.width >= ALL_VIEWS:
            text.append(f"[{number} {view}]" if current else f" {number} {view} ", style="reverse" if current else "")
    return text.append(f" by {state.sort}{' reversed' if state.reverse else ''}")


def help_lines() -> Iterator[RenderableType]:
    """The keys, a line each."""
    for key, meaning in HELP:
        yield Text.assemble((f"{key:<14}", "bold"), meaning)
    yield Text(f"order: {', '.join(SORTS)}")


def _body(scene: Scene, state: ViewState, look: Look) -> Iterable[RenderableType]:
    views: dict[str, Callable[[Scene, ViewState, Look], Iterable[RenderableType]]] = {
        "overview": _overview,
        "gpu": _one_gpu,
        "processes": lambda scene, state, look: [
            process_table(scene, ordered(scene, state), look),
            *unseen_lines(scene, ordered(scene, state)),
        ],
        "runs": lambda scene, state, look: [run_table(scene, look)],
        "health": lambda scene, state, look: health_lines(scene, ordered(scene, state)),
    }
    return views[state.view](scene, state, look)


def _one_gpu(scene: Scene, state: ViewState, look: Look) -> Iterable[RenderableType]:
    sample = selected(scene, state)
    return [Text("no GPU to look at")] if sample is None else gpu_detail(scene, sample, look)


def _overview(scene: Scene, state: ViewState, look: Look) -> Iterator[RenderableType]:
    samples = ordered(scene, state)
    current = selected(scene, state)
    live = look.height is not None
    if samples:
        marked = current.gpu.uuid if live and current is not None else None
        shown = window(samples, current, look.height)
        yield gpu_table(scene, shown, look, marked=marked, sort=state.sort, trend=live)
    room = None if look.height is None else look.height - len(samples) - 1
    sections: list[tuple[str, list[RenderableType]]] = [
        ("Alerts", list(alert_lines(scene))),
        ("Health", list(note_lines(scene, samples))),
        ("Runs", [run_table(scene, look)] if scene.runs else []),
        ("Processes", list(_processes(scene, samples, look))),
    ]
    for title, lines in sections:
        if lines and (room is None or room > 1):
            yield Text()
            yield Text(title, style="bold")
            yield from lines


def _processes(scene: Scene, samples: Sequence[GpuSample], look: Look) -> Iterator[RenderableType]:
    if any(sample.processes for sample in samples):
        yield process_table(scene, samples, look)
    yield from unseen_lines(scene, samples)


def unseen_lines(scene: Scene, samples: Sequence[GpuSample]) -> Iterator[Text]:
    """GPUs whose memory is in use though no process is to be seen; that of MIG instances is seen there."""
    names, divided = labels(scene.snapshot.gpus), {sample.gpu.parent for sample in scene.snapshot.gpus}
    for sample in samples:
        taken = None if sample.processes or sample.gpu.uuid in divided else occupants(sample)
        if taken is not None:
            yield Text.assemble(f"GPU {names[sample.gpu.uuid]} ", (taken, "yellow"))


def window(samples: Sequence[GpuSample], current: GpuSample | None, height: int | None) -> Sequence[GpuSample]:
    """As many GPUs as fit below a header, the chosen one among them."""
    room = len(samples) if height is None else max(height - 1, 1)
    place = 0 if current is None else samples.index(current)
    first = min(max(place - room + 1, 0), max(len(samples) - room, 0))
    return samples[first : first + room]


def alert_lines(scene: Scene) -> Iterator[Text]:
    """Alerts that are pending or firing, the ones that fire first."""
    for alert in sorted(scene.alerts, key=lambda alert: alert.state != "firing"):
        style = SEVERITY_STYLES.get(alert.severity, "") if alert.state == "firing" else ""
        lasting = words.span(scene.now - alert.since)
        action = f"; {alert.action}" if alert.action else ""
        yield Text.assemble(
            (f"{alert.severity} {alert.state} {lasting}", style), f" {subject(scene, alert.subject)}: "
        ).append(f"{alert.message}{action}")


def subject(scene: Scene, name: str) -> str:
    """What an alert is about, as people call it."""
    label = labels(scene.snapshot.gpus).get(name)
    return name if label is None else f"GPU {label}"


def note_lines(scene: Scene, samples: Sequence[GpuSample]) -> Iterator[Text]:
    """What is wrong with single GPUs, or slows them down."""
    for label, status, sentence in notes(scene, samples):
        yield Text.assemble(f"GPU {label} ", (status, STATUS_STYLES.get(status, "")), f": {sentence}")


def health_lines(scene: Scene, samples: Sequence[GpuSample]) -> Iterator[Text]:
    """Every GPU's verdict, each finding with its action and source; alerts."""
    names = labels(scene.snapshot.gpus)
    for sample in samples:
        verdict = scene.verdicts.get(sample.gpu.uuid)
        status = "not known" if verdict is None else verdict.status
        yield Text.assemble(f"GPU {names[sample.gpu.uuid]} {sample.gpu.name} ", (status, STATUS_STYLES.get(status, "")))
        for finding in verdict.findings if verdict is not None else ():
            yield Text.assemble("  ", (finding.status, STATUS_STYLES.get(finding.status, "")), f" {finding.message}")
            yield Text(f"       do: {finding.action} ({finding.source})")
        if sample.throttled_by and verdict is None:
            yield Text(f"  slowed down by {', '.join(sample.throttled_by)}")
    alerts = list(alert_lines(scene))
    yield Text()
    yield Text("Alerts" if alerts else "no alerts", style="bold")
    yield from alerts


def plain_lines(scene: Scene, *, again: bool = False) -> Iterator[str]:
    """The scene for a log: a line a GPU, a line a run, a line an alert, each with the time.

    again: not the first ones, so that a machine without GPU need not be told of.
    """
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(scene.now))
    for warning in () if again and scene.snapshot.no_gpu else warnings(scene):
        yield f"{stamp} {warning.plain}"
    names = labels(scene.snapshot.gpus)
    for sample in scene.snapshot.gpus:
        yield f"{stamp} GPU {names[sample.gpu.uuid]} {', '.join(_facts(scene, sample))}"
    for label, status, sentence in notes(scene, scene.snapshot.gpus):
        yield f"{stamp} GPU {label} {status}: {sentence}"
    for run in scene.runs:
        yield f"{stamp} run {run_words(run)}"
    for alert in alert_lines(scene):
        yield f"{stamp} alert {alert.plain}"


def _facts(scene: Scene, sample: GpuSample) -> Iterator[str]:
    verdict, pipes = scene.verdicts.get(sample.gpu.uuid), sample.pipes
    values = (
        ("use", words.percent(sample.utilization)),
        ("SM", words.percent(None if pipes is None else pipes.sm_active)),
        ("tensor", words.percent(None if pipes is None else pipes.tensor_active)),
        ("memory", f"{words.used_of(sample.memory_used_bytes, sample.gpu.memory_bytes)} GiB"),
        ("power", words.watts(sample.power_w, sample.power_limit_w)),
        ("at", words.celsius(sample.temperature_c)),
        ("health", words.UNKNOWN if verdict is None else verdict.status),
    )
    return (f"{name} {value}" for name, value in values if not value.startswith(words.UNKNOWN))
