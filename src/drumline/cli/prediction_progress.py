"""How far a prediction run is, on screen: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline.cli.screen import is_screen, table_console
from drumline.predictions import PredictionDir, Progress, ProgressReader
from drumline.rundir import read_json

if TYPE_CHECKING:
    from drumline.monitor.sampler import Sampler

SCREEN_S, LINES_S = 0.5, 10.0
"""Between two looks, and between two lines where there is no terminal."""
WINDOW_S = 30.0
"""Over how long rates are taken."""


@dataclass(frozen=True)
class Pace:
    """Rates over the last seconds; None while too little is known."""

    rows_per_s: float | None = None
    tokens_per_s: float | None = None
    left_s: float | None = None


class Paces:
    """Turns looks into rates; pure but for what it remembers."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Progress]] = deque()

    def add(self, now: float, progress: Progress) -> Pace:
        """Take a look at `now`, in seconds of any clock, and give the rates since the oldest look within WINDOW_S."""
        self._looks.append((now, progress))
        while len(self._looks) > 2 and self._looks[1][0] <= now - WINDOW_S:
            self._looks.popleft()
        began, before = self._looks[0]
        rows, tokens = progress.rows_done - before.rows_done, progress.tokens - before.tokens
        if now <= began or rows <= 0:
            return Pace()
        rate = rows / (now - began)
        total = progress.rows_total
        left = None if total is None else (total - progress.rows_done) / rate
        return Pace(rate, tokens / (now - began) if tokens > 0 else None, left)


def describe(progress: Progress, pace: Pace, gpu_use: float | None) -> str:
    """One line for people."""
    if progress.rows_total is None:
        return "the model is loaded and the rows are read"
    failed = f" ({progress.rows_failed:,} failed)" if progress.rows_failed else ""
    parts = [f"{progress.rows_done:,} of {progress.rows_total:,} rows{failed}", *rates(pace, gpu_use)]
    return ", ".join(parts)


def rates(pace: Pace, gpu_use: float | None) -> list[str]:
    """What is known of the speed, in words."""
    found = []
    if pace.rows_per_s is not None:
        found.append(f"{number(pace.rows_per_s)} rows/s")
    if pace.tokens_per_s is not None:
        found.append(f"{number(pace.tokens_per_s)} tokens/s")
    if gpu_use is not None:
        found.append(f"GPUs at {gpu_use:.0%}")
    if pace.left_s is not None:
        found.append(f"{duration(pace.left_s)} left")
    return found


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """As 45 s, 12 min, 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


class Display:
    """Shows a run while it goes on: call `tick` often."""

    def __init__(self, directory: PredictionDir, gpus: Sequence[str], clock: Callable[[], float] = time.monotonic):
        self._directory = directory
        self._reader = ProgressReader(directory.path)
        self._paces = Paces()
        self._clock = clock
        self._gpus = frozenset(gpus)
        self._sampler: Sampler | None = None
        self._bar: Any = None
        self._console: Any = table_console()
        self._next_look = self._next_line = clock()
        self._told_facts = False
        self.first: Progress | None = None
        """At the beginning, where a run goes on."""
        self.newest: Progress | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside it is on screen."""
        with ExitStack() as stack:
            if self._gpus:
                from drumline.monitor.sampler import Sampler

                self._sampler = stack.enter_context(Sampler(1.0))
            if is_screen():
                self._bar = stack.enter_context(_bar(self._console))
            yield
            self.look()

    def tick(self) -> None:
        """Look, if it is time for it."""
        now = self._clock()
        if now >= self._next_look:
            self._next_look = now + SCREEN_S
            self.look()

    def tell(self, text: str) -> None:
        """Show a line above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def look(self) -> None:
        """Look at the run, and show it."""
        now, progress = self._clock(), self._reader.look()
        self.first, self.newest = self.first or progress, progress
        pace, use = self._paces.add(now, progress), self._gpu_use()
        if not self._told_facts and self._directory.facts.is_file():
            self._told_facts = True
            self.tell(facts_in_words(read_json(self._directory.facts)))
        if self._bar is not None:
            total = progress.rows_total
            words = ", ".join(rates(pace, use)) if total is not None else describe(progress, pace, use)
            self._bar.update(self._bar.task_ids[0], total=total, completed=progress.rows_done, words=words)
            self._bar.refresh()
        elif now >= self._next_line and progress.rows_total is not None:
            self._next_line = now + LINES_S
            self.tell(describe(progress, pace, use))

    def _gpu_use(self) -> float | None:
        latest = None if self._sampler is None else self._sampler.latest
        samples = () if latest is None else latest.gpus
        known = [each.utilization for each in samples if each.gpu.uuid in self._gpus and each.utilization is not None]
        return sum(known) / len(known) if known else None


def facts_in_words(facts: dict[str, Any]) -> str:
    """What the workers have agreed on, as far as it is a word or a number: 'tokens a batch: 4,096, engine: static'."""
    names = {"tokens": "tokens a batch"}
    simple = {names.get(name, name): value for name, value in facts.items() if isinstance(value, str | int | float)}
    told = (f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}" for name, value in simple.items())
    return "agreed on by all workers: " + (", ".join(told) or "nothing")


def _bar(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TextColumn("{task.fields[words]}"))
    bar = Bar(*columns, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    bar.add_task("rows", total=None, words="")
    return bar
