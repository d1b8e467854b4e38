from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from drumline.engine.hang import Pulse
from drumline.errors import ConfigError, HangError
from drumline.launcher.world import World
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Alone
from drumline.rundir import RunDir, read_lines

LIMIT_S = 0.24


def alone(limit_s: float = LIMIT_S) -> Pulse:
    return Pulse(Groups(World(), torch.device("cpu"), Alone(), None, owns_default=False), limit_s)


def stand_still(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.2)


def test_a_single_process_that_hangs_ends_with_its_own_report(tmp_path: Path) -> None:
    pulse = alone()
    pulse.directory = RunDir.create(tmp_path / "run")
    pulse.updated(4)
    with pytest.raises(HangError) as caught, pulse.watching():
        stand_still(20)
    problem = caught.value.problem
    assert problem.startswith(
        "no progress for 0.12 s (faults.hang_timeout_s=0.24, half of it after an update): rank 0 is"
    )
    assert "after update 4, step 4" in problem and f"{__file__}:" in problem and " in stand_still" in problem
    (event,) = read_lines(pulse.directory.events)
    assert (event["event"], event["message"], event["missing"]) == ("hang", problem, [0])


def test_who_comes_on_does_not_hang() -> None:
    pulse = alone()
    with pulse.watching():
        for number in range(8):
            pulse.at(f"place {number}")
            time.sleep(LIMIT_S / 4)


def test_long_work_that_says_so_does_not_hang_nor_does_the_users_own_loop() -> None:
    pulse = alone()
    with pulse.watching():
        with pulse.busy("writing"):
            time.sleep(0.2)
            with pulse.busy("the inner part"):
                time.sleep(0.2)
            time.sleep(0.2)
        with pulse.yours():
            stand_still(0.6)
    assert pulse.long_work == []


def test_another_threads_training_is_told_of_and_the_process_lives_on(tmp_path: Path) -> None:
    pulse = alone()
    pulse.directory = RunDir.create(tmp_path / "run")

    def train() -> None:
        with pulse.watching():
            stand_still(1.0)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(30)
    (event,) = read_lines(pulse.directory.events)
    assert event["event"] == "hang"


def test_one_thread_watches_and_none_is_left() -> None:
    pulse = alone(60.0)
    with pulse.watching(), pulse.watching():
        assert [thread.name for thread in threading.enumerate()].count("drumline-pulse") == 1
    assert "drumline-pulse" not in [thread.name for thread in threading.enumerate()]


def test_without_groups_nothing_is_watched() -> None:
    pulse = Pulse()
    with pulse.watching(), pulse.busy("writing"), pulse.yours():
        pulse.at("somewhere")
        assert "drumline-pulse" not in [thread.name for thread in threading.enumerate()]


def test_an_exception_gets_a_note_of_where_the_run_stood() -> None:
    pulse = alone(60.0)
    with pytest.raises(ZeroDivisionError) as caught, pulse.watching():
        pulse.updated(2)
        pulse.at("update 3, reading window 3 of epoch 0")
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["in the run: update 3, reading window 3 of epoch 0, step 2"]
    with pytest.raises(ConfigError) as refused, pulse.watching():
        raise ConfigError("this", "that")
    assert not hasattr(refused.value, "__notes__")


def test_micro_batches_are_places_and_only_the_last_one_waits_for_others() -> None:
    times = iter([0.0, 1.0, 3.0, 7.0, 20.0])
    pulse = Pulse(clock=lambda: next(times))
    seen = []
    for part in pulse.through(("a", "b"), "update 3"):
        seen.append((part, pulse.place))
    assert seen == [("a", "update 3, micro-batch 1 of 2"), ("b", "update 3, micro-batch 2 of 2")]
    pulse.at("update 3, reading window 3 of epoch 0")
    assert pulse.own_s == 2.0  # of the first micro-batch; the second one's backward pass waits
    pulse.updated(3)
    assert pulse.own_s == 2.0 + 13.0  # and of reading
    assert (pulse.step, pulse.updates) == (3, 1)
