from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli.terminal import BACK, PROGRAM, Terminal


def test_a_person_looks_around_in_a_narrow_terminal_and_leaves() -> None:
    with Terminal("two_gpus", "monitor", "--every", "0.2", width=60) as terminal:
        lines = terminal.shows(lambda lines: len(lines) == 24 and "fail" in lines[3])
        assert len(lines) == 24 and all(len(line) <= 60 for line in lines)
        assert "92%" in lines[2] and "612/700 W" in lines[2] and lines[-1].startswith("q quit  ? help [1 overview]")
        terminal.type("5")
        terminal.shows(lambda lines: any("uncorrectable ECC" in line for line in lines) and "5 health" in lines[-1])
        terminal.type("\x1b[B\r")  # the second one, on a screen of its own
        terminal.shows(lambda lines: any(line.startswith("GPU 1  NVIDIA H100") for line in lines))
        terminal.type("?")
        terminal.shows(lambda lines: any("leave" in line for line in lines))
        terminal.type("x1")
        terminal.resize(130, 12)
        lines = terminal.shows(lambda lines: len(lines) == 12 and "last 2 min" in lines[1])
        assert "2 gpu" in lines[-1]
        terminal.type("p")
        terminal.shows(lambda lines: lines[0].startswith("PAUSED"))
        terminal.type("q")
        assert terminal.ends() == 0
        assert terminal.is_given_back()


@pytest.mark.parametrize("end", ["Ctrl-C", "SIGTERM", "hung driver"])
def test_whatever_ends_it_the_terminal_is_as_it_was(end: str) -> None:
    with Terminal("hung" if end == "hung driver" else "two_gpus", "monitor", NO_COLOR="1") as terminal:
        if end == "hung driver":
            terminal.shows(lambda lines: len(lines) == 24 and lines[1].startswith("GPUs cannot be read: not read yet"))
            terminal.type("q")
        else:
            terminal.shows(lambda lines: len(lines) == 24 and "92%" in lines[2])
            assert "\x1b[3" not in terminal.output and "\x1b[38" not in terminal.output
            if end == "Ctrl-C":
                terminal.type("\x03")
            else:
                terminal.send(signal.SIGTERM)
        assert terminal.ends() == 0
        assert terminal.is_given_back()
        assert "Traceback" not in terminal.output


def test_it_is_laid_aside_and_taken_up_again() -> None:
    with Terminal("two_gpus", "monitor", then="stty -a; read -p 'laid aside '; fg") as terminal:
        terminal.shows(lambda lines: len(lines) == 24)
        terminal.type("\x1a")  # Ctrl-Z
        terminal.shows(lambda lines: lines[-1].endswith("laid aside "))
        assert " icanon " in terminal.output and " echo " in terminal.output and BACK in terminal.output
        terminal.output = ""
        terminal.type("\n")
        terminal.shows(lambda lines: len(lines) == 24)
        terminal.type("q")
        assert terminal.ends() == 0 and terminal.is_given_back()


def test_a_terminal_that_is_closed_ends_it() -> None:
    with Terminal("two_gpus", "monitor") as terminal:
        terminal.shows(lambda lines: len(lines) == 24)
        terminal.hang_up()
        assert terminal.ends() == 0


def test_a_dumb_terminal_gets_lines() -> None:
    with Terminal("two_gpus", "monitor", "--every", "0.2", TERM="dumb") as terminal:
        terminal.shows(lambda lines: sum("GPU 0 use 92%" in line for line in lines) > 1)
        assert "\x1b" not in terminal.output
        terminal.type("\x03")
        assert terminal.ends() == 0


def test_it_serves_what_it_sees_until_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "two_gpus", "monitor", "--serve", "127.0.0.1:0"]
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            said = re.match(r"metrics are at (http://127\.0\.0\.1:\d+/metrics); Ctrl-C ends it", line)
            assert said is not None, log.read_text()
            values = scrape(said[1], 'drumline_gpu_health{gpu="GPU-bbbb",name="NVIDIA H100 80GB HBM3",status="fail"}')
            assert values['drumline_gpu_power_watts{gpu="GPU-aaaa",name="NVIDIA H100 80GB HBM3"}'] == 612.0
            limit = time.monotonic() + 30.0
            while "ERROR alert firing: GPU-bbbb" not in log.read_text():
                assert time.monotonic() < limit, log.read_text()
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def scrape(url: str, until: str) -> dict[str, float]:
    """Values by name and labels, from when there is the one that is waited for."""
    limit = time.monotonic() + 30.0
    while True:
        with urllib.request.urlopen(url, timeout=30) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
        values = {name: float(value) for name, _, value in lines}
        if until in values:
            return values
        assert time.monotonic() < limit, values
        time.sleep(0.05)


def test_who_reads_may_leave(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "two_gpus", "monitor", "--every", "0.1"]
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        try:
            assert process.stdout is not None
            assert "GPU 0 use 92%" in process.stdout.readline()
            process.stdout.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert not re.search("Traceback|BrokenPipe|Exception", log.read_text())
