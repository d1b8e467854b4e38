"""Progress on a terminal and without one."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from drumline.plan.record import Plan
from drumline.track.console import ConsoleTracker, describe, facts, remaining_s
from drumline.track.logs import console_handler

TRAIN = {
    "kind": "train",
    "step": 10,
    "epoch": 0,
    "loss": 2.314,
    "lr": 3e-4,
    "grad_norm": 0.8124,
    "samples_per_s": 48.2,
    "units_per_s": 12345.4,
    "unit": "tokens",
    "mfu": 0.4123,
    "memory_peak_bytes": [2**30, 1.5 * 2**30],
    "memory_allocated_bytes": [2**29, 2**29],
    "loader_wait_s": 0.02,
    "skipped": 0,
    "elapsed_s": 20.0,
}


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "kind": "ddp",
        "device": "cpu",
        "gpus": (),
        "world_size": 2,
        "num_shards": 2,
        "backend": "gloo",
        "global_batch": 64,
        "micro_batch": 32,
        "accumulation": 1,
        "precision": "fp32",
        "num_workers": 0,
        "steps": 400,
        "steps_per_epoch": 100,
    }
    return Plan(**(values | changes))


def ticking(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def train(step: int, **changes: Any) -> dict[str, Any]:
    return TRAIN | {"step": step} | changes


class Terminal(io.StringIO):
    """A stream that is a terminal, and what would be seen on it."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Lines as they stand, for the few control sequences that a progress bar uses."""
        lines, row, column = [""], 0, 0
        for token in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|.|\n", self.getvalue()):
            if token == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif token == "\r":
                column = 0
            elif token.startswith("\x1b"):
                row, column = self._control(token, lines, row, column)
            else:
                lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
                column += 1
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _control(self, token: str, lines: list[str], row: int, column: int) -> tuple[int, int]:
        if token == "\x1b[2K":
            lines[row] = ""
        elif re.fullmatch(r"\x1b\[\d+A", token):
            return row - int(token[2:-1]), column
        else:
            assert token[-1] in "mhl", f"the screen does not know {token!r}"  # colours, cursor on and off
        return row, column


def bar_on(terminal: io.StringIO, *times: float, width: int = 100) -> ConsoleTracker:
    console = Console(file=terminal, force_terminal=True, width=width, height=30, color_system="standard")
    return ConsoleTracker(console=console, clock=ticking(*times))


def test_plain_lines_are_exact() -> None:
    stream = io.StringIO()
    tracker = ConsoleTracker(stream, clock=ticking(100.0, 120.0))
    threads = threading.active_count()
    tracker.start(plan(), 400)
    tracker.log(train(10))
    tracker.log(
        {"kind": "eval", "step": 10, "epoch": 0, "loss": 2.5, "count": 1512, "elapsed_s": 25.0, "accuracy": 0.5}
    )
    tracker.log(train(20, mfu=None, skipped=2))
    assert threading.active_count() == threads
    tracker.close()
    tracker.close()
    tracker.log(train(30))
    assert stream.getvalue() == (
        "2 processes on cpu, ddp; global batch 64 = 2 x 32; fp32; 400 updates\n"
        "step 10/400 | loss 2.3140 | 12,345 tokens/s | MFU 41.2% | memory 1.5 GiB | lr 3.00e-04 | grad norm 0.812"
        " | loader wait 0.02 s\n"
        "step 10/400 | eval loss 2.5000 | accuracy 0.5000 | 1,512 samples\n"
        "step 20/400 | loss 2.3140 | 2 skipped | 12,345 tokens/s | memory 1.5 GiB | lr 3.00e-04 | grad norm 0.812"
        " | loader wait 0.02 s | ETA 0:12:40\n"
    )


def test_plain_lines_appear_at_once_and_without_a_known_length() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii", write_through=False)
    tracker = ConsoleTracker(stream, clock=ticking(0.0))
    tracker.start(plan(steps=None), None)
    tracker.log({"kind": "train", "step": 5, "loss": 1.0, "samples_per_s": 3.25})
    assert buffer.getvalue().decode() == (
        "2 processes on cpu, ddp; global batch 64 = 2 x 32; fp32; length not known\n"
        "step 5 | loss 1.0000 | 3.2 samples/s\n"
    )
    tracker.close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"world_size": 1, "num_shards": 1, "kind": "single", "micro_batch": 64},
            "1 process on cpu, single; global batch 64 = 1 x 64;",
        ),
        (
            {"micro_batch": 8, "accumulation": 4, "device": "cuda"},
            "2 processes on cuda, ddp; global batch 64 = 2 x 8 x 4 ",
        ),
        (
            {"global_batch": 10, "world_size": 3, "num_shards": 3, "micro_batch": 4},
            "3 processes on cpu, ddp; global batch 10, up to 3 x 4;",
        ),
        ({"steps": 7}, "2 processes on cpu, ddp; global batch 64 = 2 x 32; fp32; 7 updates"),
        (
            {"kind": "data_parallel", "device": "cuda", "world_size": 1, "num_shards": 4, "micro_batch": 16},
            "1 process on cuda, data_parallel with 4 replicas; global batch 64 = 4 x 16;",
        ),
    ],
)
def test_the_start_line_says_how_the_batch_falls_on_the_processes(changes: dict[str, Any], text: str) -> None:
    assert describe(plan(**changes), None).startswith(text)


def test_values_that_are_not_finite_or_missing() -> None:
    record = {"kind": "train", "step": 1, "loss": math.nan, "grad_norm": math.inf, "units_per_s": math.nan, "mfu": None}
    assert facts(record) == ["loss nan", "nan units/s", "grad norm inf"]
    assert facts({"kind": "eval", "step": 1, "loss": math.inf, "f1": math.nan}) == ["eval loss inf", "f1 nan"]
    assert facts({}) == []
    assert facts({"memory_resident_bytes": [], "f1": []}) == ["f1 none"]


def test_of_values_by_rank_the_highest_is_shown_and_of_many_metrics_the_first() -> None:
    record: dict[str, Any] = {"kind": "eval", "loss": 2.5, "count": 7}
    record |= {f"metric_{k}": k / 10 for k in range(50)} | {
        "lr": 1e-3,
        "memory_resident_bytes": [2**20, 3 * 2**20, None],
    }
    shown = facts(record)
    assert shown[:2] == ["eval loss 2.5000", "metric_0 0.0000"]
    assert shown[8:] == ["metric_7 0.7000", "42 more", "7 samples", "memory 3 MiB", "lr 1.00e-03"]
    assert facts({"f1": [0.5, 0.25, 1.0], "same": [2, 2]}) == ["f1 0.2500 to 1.0000", "same 2.0000"]


def test_learners_are_shown_by_name_beside_the_loss() -> None:
    record = {
        "kind": "train",
        "loss": 2.0,
        "critic/loss": 1.5,
        "critic/lr": 1e-5,
        "lr": 1e-3,
        "gradient_noise_scale": 8.04,
    }
    assert facts(record) == [
        "loss 2.0000",
        "critic/loss 1.5000",
        "critic/lr 1.00e-05",
        "lr 1.00e-03",
        "noise scale 8.0",
    ]


@pytest.mark.parametrize(
    ("history", "seconds"),
    [
        ([], None),
        ([(0.0, 10)], None),
        ([(0.0, 10), (5.0, 20)], 40.0),
        ([(0.0, 10), (5.0, 20), (30.0, 40)], 60.0),
        ([(0.0, 10), (5.0, 10)], None),
        ([(5.0, 10), (5.0, 20)], None),
        ([(0.0, 90), (5.0, 120)], 0.0),
    ],
)
def test_remaining_time(history: list[tuple[float, int]], seconds: float | None) -> None:
    assert remaining_s(history, 100) == seconds


def test_the_eta_follows_the_newest_records() -> None:
    stream = io.StringIO()
    times = [*range(0, 30), *range(130, 530, 10)]  # 1 s a record, then 10 s
    tracker = ConsoleTracker(stream, clock=ticking(*times))
    tracker.start(plan(), 1000)
    for step, _ in enumerate(times, start=1):
        tracker.log({"kind": "train", "step": step})
    tracker.close()
    assert stream.getvalue().splitlines()[-1] == "step 70/1000 | ETA 2:35:00"


def test_the_bar_shows_the_newest_record_and_leaves_lines() -> None:
    terminal = Terminal()
    tracker = bar_on(terminal, 0.0, 20.0)
    threads = threading.active_count()
    tracker.start(plan(), 400)
    assert terminal.screen()[1].startswith("starting ")
    tracker.log(train(100))
    tracker.log({"kind": "eval", "step": 100, "loss": 2.5, "accuracy": 0.75, "f1": 0.5, "count": 512})
    tracker.log(train(200, loss=2.0))
    start, evaluation, bar, newest = terminal.screen()
    assert start == "2 processes on cpu, ddp; global batch 64 = 2 x 32; fp32; 400 updates"
    assert evaluation == "step 100/400 | eval loss 2.5000 | accuracy 0.7500 | f1 0.5000 | 512 samples"
    assert re.fullmatch(r"step 200/400 [━╸╺]+ 50%  ETA 0:00:40", bar)
    assert newest.startswith(
        "loss 2.0000  eval loss 2.5000  eval accuracy 0.7500  12,345 tokens/s  MFU 41.2%  memory 1.5 GiB"
    )
    assert len(newest) <= 100
    assert threading.active_count() == threads
    tracker.close()
    lines = terminal.screen()
    assert lines[:2] == [start, evaluation]
    assert lines[2].startswith("step 200/400 | loss 2.0000 | 12,345 tokens/s")
    assert len(lines) == 3


def test_the_bar_is_taken_away_after_an_exception() -> None:
    terminal = Terminal()
    streams = sys.stdout, sys.stderr
    tracker = bar_on(terminal, 0.0)
    with pytest.raises(KeyboardInterrupt), contextlib.closing(tracker):
        tracker.start(plan(), 400)
        tracker.log(train(100))
        raise KeyboardInterrupt
    text = terminal.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert [line for line in terminal.screen() if "━" in line] == []
    assert (sys.stdout, sys.stderr) == streams
    assert logging.getLogger("drumline").handlers == []


def test_the_cursor_is_visible_while_the_bar_is_shown() -> None:
    terminal = Terminal()
    tracker = bar_on(terminal, 0.0)
    tracker.start(plan(), 400)
    tracker.log(train(100))
    text = terminal.getvalue()
    tracker.close()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize("configured_root", [False, True])
def test_log_records_stand_above_the_bar(configured_root: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(terminal)] if configured_root else [])
    undo = console_handler()
    tracker = bar_on(terminal, 0.0, 1.0)
    tracker.start(plan(), 400)
    tracker.log(train(100))
    logging.getLogger("drumline.data").warning("slow loader")
    tracker.log(train(200))
    _, message, bar, newest = terminal.screen()
    assert message == ("slow loader" if configured_root else "WARNING drumline.data: slow loader")
    assert bar.startswith("step 200/400 ")
    assert newest.startswith("loss 2.3140")
    tracker.close()
    undo()
    assert sys.stderr is terminal


def test_prints_stand_above_the_bar_only_where_they_go_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", file)
    tracker = ConsoleTracker(clock=ticking(0.0))
    tracker.start(plan(), 400)
    tracker.log(train(100))
    print("a user's line")
    print("into the file", file=sys.stderr)
    tracker.close()
    assert terminal.screen()[1] == "a user's line"
    assert file.getvalue() == "into the file\n"
    assert sys.stdout is terminal


def test_a_bar_without_a_known_length_and_in_a_narrow_terminal() -> None:
    terminal = Terminal()
    tracker = bar_on(terminal, 0.0, width=40)
    tracker.start(plan(steps=None), None)
    tracker.log(train(100))
    *_, head, newest = terminal.screen()
    assert head.strip() == "step 100"
    assert newest.startswith("loss 2.3140  12,345 tokens/s")
    assert len(newest) <= 40
    tracker.close()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    tracker = ConsoleTracker(terminal, clock=ticking(0.0))
    tracker.start(plan(), 400)
    tracker.log({"kind": "train", "step": 1, "loss": 1.0})
    tracker.close()
    assert terminal.getvalue().splitlines()[1] == "step 1/400 | loss 1.0000"


class Gone(Terminal):
    """A terminal that went away after its first writes."""

    writes = 0

    def write(self, text: str) -> int:
        self.writes += 1
        if self.writes > 3:
            raise OSError(5, "Input/output error")
        return super().write(text)


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_stream_that_went_away_ends_the_display_and_not_the_run(
    on_terminal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Gone()
    streams = sys.stdout, sys.stderr
    tracker = bar_on(stream, *range(9)) if on_terminal else ConsoleTracker(stream, clock=ticking(*range(9)))
    if not on_terminal:
        stream.isatty = lambda: False  # type: ignore[method-assign]
    tracker.start(plan(), 400)
    for step in range(1, 6):
        tracker.log(train(step))
    tracker.close()
    assert [record.message for record in caplog.records] == [
        "progress is no longer shown, the run goes on: [Errno 5] Input/output error"
    ]
    assert (sys.stdout, sys.stderr) == streams
    assert logging.getLogger("drumline").handlers == []


def test_letters_that_the_stream_lacks_do_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    tracker = ConsoleTracker(stream, clock=ticking(0.0))
    tracker.start(plan(), 400)
    tracker.log({"kind": "eval", "step": 1, "précision": 0.5})
    tracker.close()
    assert caplog.records[0].message.startswith("progress is no longer shown, the run goes on: 'ascii' codec")
