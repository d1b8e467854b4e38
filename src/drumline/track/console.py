"""Rank 0's progress: a bar on a terminal, a plain line a record everywhere else (files, pipes, notebooks)."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from drumline.plan.record import Plan
from drumline.track.logs import LOGGER
from drumline.track.protocol import RECORD_KEYS
from drumline.track.units import as_float, duration, highest, plain, rate, size, span

logger = logging.getLogger(__name__)

ETA_RECORDS = 20
"""Records that the rate behind the ETA is taken over: recent enough to follow a change, evaluations included."""

MAX_METRICS = 8
"""Metrics of a record that are shown; metrics.jsonl has all of them."""


def describe(plan: Plan, total_steps: int | None) -> str:
    """The plan's main facts in one line; a batch is written as shards x samples x passes."""
    processes = f"{plan.world_size} process{'es' if plan.world_size > 1 else ''} on {plan.device}, {plan.kind}"
    if plan.kind == "data_parallel":
        processes += f" with {plan.num_shards} replica{'s' if plan.num_shards > 1 else ''}"
    parts = f"{plan.num_shards} x {plan.micro_batch}" + (
        f" x {plan.accumulation} passes" if plan.accumulation > 1 else ""
    )
    exact = plan.num_shards * plan.micro_batch * plan.accumulation == plan.global_batch
    batch = (
        f"global batch {plan.global_batch} = {parts}" if exact else f"global batch {plan.global_batch}, up to {parts}"
    )
    steps = total_steps if total_steps is not None else plan.steps
    return f"{processes}; {batch}; {plan.precision}; {'length not known' if steps is None else f'{steps} updates'}"


def remaining_s(history: Sequence[tuple[float, int]], total: int) -> float | None:
    """Seconds until update `total` at the rate of the (time, step) pairs; None where they show no progress."""
    if len(history) < 2:
        return None
    (first_time, first_step), (last_time, last_step) = history[0], history[-1]
    if last_step <= first_step or last_time <= first_time:
        return None
    return max(total - last_step, 0) * (last_time - first_time) / (last_step - first_step)


def facts(record: Mapping[str, Any]) -> list[str]:
    """What a record says, most wanted first; values that are missing are left out, NaN and infinity are shown.

    Of values by rank the highest is shown, of metrics the first MAX_METRICS.
    """
    prefix = "eval " if record.get("kind") == "eval" else ""
    unit = str(record.get("unit", "units"))
    before: dict[str, Callable[[float], str]] = {"loss": lambda value: f"{prefix}loss {plain(value)}"}
    after: dict[str, Callable[[float], str]] = {
        "skipped": lambda value: f"{value:.0f} skipped",
        "count": lambda value: f"{value:,.0f} samples",
        "units_per_s": lambda value: rate(value, unit),
        "samples_per_s": lambda value: rate(value, "samples"),
        "mfu": lambda value: f"MFU {100 * value:.1f}%",
        "memory_peak_bytes": lambda value: f"memory {size(value)}",
        "memory_resident_bytes": lambda value: f"memory {size(value)}",
        "lr": lambda value: f"lr {value:.2e}",
        "grad_norm": lambda value: f"grad norm {plain(value, 3)}",
        "gradient_noise_scale": lambda value: f"noise scale {plain(value, 1)}",
        "loader_wait_s": lambda value: f"loader wait {value:.2f} s",
        "aux_loss": lambda value: f"aux_loss {plain(value)}",
    }
    if "units_per_s" in record:
        del after["samples_per_s"]
    if not record.get("skipped"):
        del after["skipped"]
    return [*_written(record, before), *_metrics(record), *_written(record, after)]


def evaluation_headline(record: Mapping[str, Any]) -> str:
    """An evaluation's loss and first metric, as they stay beside the newest training record."""
    loss = [plain(record["loss"])] if "loss" in record else []
    return "  ".join(f"eval {fact}" for fact in [*(f"loss {value}" for value in loss), *_metrics(record)[:1]])


def _written(record: Mapping[str, Any], writers: Mapping[str, Callable[[float], str]]) -> list[str]:
    numbers = {
        key: highest(value) if isinstance(value := record.get(key), list) else as_float(value) for key in writers
    }
    return [write(number) for key, write in writers.items() if (number := numbers[key]) is not None]


def _metrics(record: Mapping[str, Any]) -> list[str]:
    own = [(key, value) for key, value in record.items() if key not in RECORD_KEYS and value is not None]
    said = [f"{key} {span(value) if isinstance(value, list) else plain(value)}" for key, value in own[:MAX_METRICS]]
    return said + ([f"{len(own) - MAX_METRICS} more"] if len(own) > MAX_METRICS else [])


class ConsoleTracker:
    """Shows where a run stands. No thread: the display changes when a record comes.

    On a terminal there is a bar with the newest record below it; the start line, evaluations and the last record stay
    in the scrollback. A stream that can no longer be written to ends the display, not the run.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to `stream` (standard output unless given); `console` asks for the bar whatever the stream is."""
        self._stream = stream if stream is not None else sys.stdout
        if console is None and self._stream.isatty() and os.environ.get("TERM") != "dumb":
            console = Console(file=self._stream, force_terminal=True, force_jupyter=False)
        self._bar = _Bar(console) if console is not None else None
        self._clock = clock
        self._total: int | None = None
        self._history: deque[tuple[float, int]] = deque(maxlen=ETA_RECORDS)
        self._last_line: str | None = None
        self._open = True

    def start(self, plan: Plan, total_steps: int | None) -> None:
        """Print the plan's main facts and show the empty bar."""
        self._total = total_steps if total_steps is not None else plan.steps
        self._show(lambda: self._begin(describe(plan, total_steps)))

    def log(self, record: dict[str, Any]) -> None:
        """Show one record."""
        self._show(lambda: self._display(record))

    def close(self) -> None:
        """Take the bar away, leaving the last record as a line; closing twice is allowed."""
        if not self._open:
            return
        self._show(self._finish)
        self._open = False

    def _begin(self, line: str) -> None:
        self._write(line)
        if self._bar is not None:
            self._bar.start(self._total)

    def _finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            if self._last_line is not None:
                self._bar.console.print(Text(self._last_line), soft_wrap=True)

    def _display(self, record: Mapping[str, Any]) -> None:
        step = int(record.get("step", 0))
        said = facts(record)
        place = f"step {step}" + (f"/{self._total}" if self._total is not None else "")
        if record.get("kind") == "eval":
            self._write(" | ".join([place, *said]))
            if self._bar is not None:
                self._bar.evaluation = evaluation_headline(record)
            return
        self._history.append((self._clock(), step))
        left = remaining_s(self._history, self._total) if self._total is not None else None
        eta = [f"ETA {duration(left)}"] if left is not None else []
        line = " | ".join([place, *said, *eta])
        if self._bar is None:
            self._write(line)
        else:
            self._last_line = line
            self._bar.show(step, self._total, eta, said)

    def _write(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(Text(line), soft_wrap=True)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _show(self, display: Callable[[], None]) -> None:
        if not self._open:
            return
        try:
            display()
        except (OSError, UnicodeError) as error:  # a closed pipe, a terminal that went away or lacks the letters
            self._open = False
            if self._bar is not None:
                with suppress(OSError, UnicodeError):  # the same one
                    self._bar.stop()
            logger.warning("progress is no longer shown, the run goes on: %s", error)


class _Bar(logging.Handler):
    """The bar and the line below it; as a log handler it makes room for records that the root's handlers will write."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.evaluation = ""
        self._live: Live | None = None

    def start(self, total: int | None) -> None:
        """Draw the empty bar, and listen for log records until `stop`."""
        logging.getLogger(LOGGER).addHandler(self)
        self._draw("starting", 0, total, [], [])

    def show(self, step: int, total: int | None, eta: list[str], said: list[str]) -> None:
        """Draw the bar for `step` of `total` updates."""
        self._draw(f"step {step}" + (f"/{total}" if total else ""), step, total, eta, said)

    def stop(self) -> None:
        """Erase the bar for good and give back what it took over."""
        logging.getLogger(LOGGER).removeHandler(self)
        self._erase()

    def emit(self, record: logging.LogRecord) -> None:
        """Erase the bar before another handler writes to the terminal; the next record of the run draws it again."""
        if logging.getLogger().handlers:
            self._erase()

    def _draw(self, label: str, step: int, total: int | None, eta: list[str], said: list[str]) -> None:
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True)
        cells: list[Text | ProgressBar] = [Text(label, style="bold")]
        if total:
            head.add_column(ratio=1)
            head.add_column(no_wrap=True, justify="right")
            cells += [ProgressBar(total, step), Text("  ".join([f"{100 * step / total:.0f}%", *eta]))]
        head.add_row(*cells)
        words = [*said[:1], *([self.evaluation] if self.evaluation else []), *said[1:]]
        rows = Group(head, Text("  ".join(words), no_wrap=True, overflow="ellipsis"))
        if self._live is None:
            # Only what goes to a terminal is led around the bar: `python train.py > out.txt` keeps its output.
            self._live = Live(
                console=self.console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=_is_terminal(sys.stdout),
                redirect_stderr=_is_terminal(sys.stderr),
            )
            self._live.start()
            self.console.show_cursor(True)  # Live hides it, and a kill would leave it hidden
        self._live.update(rows, refresh=True)

    def _erase(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
