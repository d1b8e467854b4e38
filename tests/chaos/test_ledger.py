"""A short fixed set of seeds of ledger_kills.py; long runs are made by hand."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.chaos.ledger_kills import draw


def test_every_row_is_there_once_in_order_whoever_is_killed() -> None:
    # In a process of its own: the workers are its forks, which must not be forks of one that has threads.
    program = Path(__file__).with_name("ledger_kills.py")
    command = [sys.executable, str(program), "--seeds", "0", "1", "--kills", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = [int(line.split()[2]) for line in done.stdout.splitlines()]
    assert len(killed) == 2
    assert min(killed) >= 4, done.stdout


def test_a_seed_draws_the_same_kills() -> None:
    one, same, other = ([draw(random.Random(seed)) for _ in range(3)] for seed in (1, 1, 2))
    assert one == same != other
