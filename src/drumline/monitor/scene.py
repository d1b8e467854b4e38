"""What the live view shows and how a person wants it: frozen records, and what a key changes in them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drumline.hardware.records import GpuSample, Snapshot

if TYPE_CHECKING:
    from drumline.hardware.health import Verdict
    from drumline.monitor.alerts import Alert
    from drumline.monitor.runs import RunFacts

VIEWS = ("overview", "gpu", "processes", "runs", "health")
"""What can be shown, in the order of the keys 1 to 5."""

SORTS = ("index", "use", "memory", "power", "temperature", "health")

RATES_S = 0.2
"""Between the two looks that some values of a picture need: how much of a GPU's units works, traffic."""

SEVERITY = {"fail": 2, "warn": 1}


@dataclass(frozen=True)
class Look:
    """What the terminal can show."""

    width: int = 80
    height: int | None = 24
    """None: as many lines as it takes."""
    ascii_only: bool = False


@dataclass(frozen=True)
class Scene:
    """The machine at one moment, as far as anybody has told."""

    snapshot: Snapshot
    now: float
    """Seconds since 1970."""
    hostname: str = ""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By UUID."""
    runs: Sequence[RunFacts] = ()
    alerts: Sequence[Alert] = ()
    series: Callable[[str, str], Iterable[tuple[float, float]]] = lambda uuid, name: ()
    """(age in seconds, value) of a field of a GPU by UUID, as far back as it is kept."""
    activity: Callable[[GpuSample], str] = lambda sample: "unknown"
    nvlinks: Mapping[str, int] = field(default_factory=dict)
    """How many are up, by UUID, of those who have any; for a picture without rates."""
    stuck: str | None = None
    """Why there is no newer snapshot."""
    price_per_hour: float | None = None
    """What all GPUs cost an hour as they run now; None without prices."""
    note: str = ""
    """The newest line of the log."""

    @property
    def age_s(self) -> float:
        """Of the snapshot."""
        return max(0.0, self.now - self.snapshot.time)


@dataclass(frozen=True)
class ViewState:
    """What a person has chosen."""

    view: str = "overview"
    sort: str = "index"
    reverse: bool = False
    selected: str | None = None
    """UUID; None: the first one."""
    paused: bool = False
    help: bool = False
    done: bool = False


def labels(samples: Sequence[GpuSample]) -> dict[str, str]:
    """How people call each GPU, by UUID: its index as nvidia-smi has it; a MIG instance has its number behind that."""
    found: dict[str, str] = {}
    counts: dict[int, int] = {}
    for sample in samples:
        gpu = sample.gpu
        if gpu.parent is None:
            found[gpu.uuid] = str(gpu.index)
        else:
            place = counts.get(gpu.index, 0)
            counts[gpu.index] = place + 1
            found[gpu.uuid] = f"{gpu.index}:{place}"
    return found


def ordered(scene: Scene, state: ViewState) -> list[GpuSample]:
    """The GPUs in the order asked for; of equal ones the machine's order. What nobody gave counts least."""
    samples = list(scene.snapshot.gpus)
    if state.sort != "index":
        # The most used, hottest, sickest first: that is what one looks for.
        samples.sort(key=lambda sample: _worth(sample, scene, state.sort), reverse=not state.reverse)
    elif state.reverse:
        samples.reverse()
    return samples


def _worth(sample: GpuSample, scene: Scene, sort: str) -> float:
    if sort == "health":
        verdict = scene.verdicts.get(sample.gpu.uuid)
        return SEVERITY.get(verdict.status, 0) if verdict is not None else -1
    values = {
        "use": sample.utilization,
        "memory": sample.memory_used_bytes,
        "power": sample.power_w,
        "temperature": sample.temperature_c,
    }
    value = values[sort]
    return -1.0 if value is None else float(value)


def selected(scene: Scene, state: ViewState) -> GpuSample | None:
    """The GPU that a person has chosen, the first one where that is gone; None without any."""
    samples = ordered(scene, state)
    return next((sample for sample in samples if sample.gpu.uuid == state.selected), samples[0] if samples else None)


def press(state: ViewState, key: str, scene: Scene) -> ViewState:
    """What a key makes of the state; an unknown one leaves it as it is."""
    if state.help:  # any key leads back from the help, q too
        return replace(state, help=False)
    if key.isdecimal() and 1 <= int(key) <= len(VIEWS):
        return _at(state, scene, VIEWS[int(key) - 1])
    changes: dict[str, Callable[[], ViewState]] = {
        "q": lambda: replace(state, done=True),
        "tab": lambda: _at(state, scene, _next(VIEWS, state.view, 1)),
        "back tab": lambda: _at(state, scene, _next(VIEWS, state.view, -1)),
        "right": lambda: _at(state, scene, _next(VIEWS, state.view, 1)),
        "left": lambda: _at(state, scene, _next(VIEWS, state.view, -1)),
        "s": lambda: replace(state, sort=_next(SORTS, state.sort, 1), reverse=False),
        "r": lambda: replace(state, reverse=not state.reverse),
        "p": lambda: replace(state, paused=not state.paused),
        "space": lambda: replace(state, paused=not state.paused),
        "down": lambda: _move(state, scene, 1),
        "j": lambda: _move(state, scene, 1),
        "up": lambda: _move(state, scene, -1),
        "k": lambda: _move(state, scene, -1),
        "enter": lambda: _at(state, scene, "gpu"),
        "escape": lambda: replace(state, view="overview"),
        "?": lambda: replace(state, help=True),
        "h": lambda: replace(state, help=True),
    }
    return changes[key]() if key in changes else state


def _at(state: ViewState, scene: Scene, view: str) -> ViewState:
    """Another view. The page of one GPU keeps to the one it began with, whichever comes first in the order later."""
    current = selected(scene, state) if view == "gpu" else None
    return replace(state, view=view, selected=state.selected if current is None else current.gpu.uuid)


def _next(choices: Sequence[str], current: str, step: int) -> str:
    return choices[(choices.index(current) + step) % len(choices)]


def _move(state: ViewState, scene: Scene, step: int) -> ViewState:
    uuids = [sample.gpu.uuid for sample in ordered(scene, state)]
    if not uuids:
        return state
    current = selected(scene, state)
    place = uuids.index(current.gpu.uuid) if current is not None else 0
    return replace(state, selected=uuids[min(max(place + step, 0), len(uuids) - 1)])
