from __future__ import annotations

import math
import os
import threading
from dataclasses import replace

import pytest

from drumline.hardware.records import Gpu, Pipes
from drumline.monitor.history import FIELDS, MOST_GPUS, History, numbers
from tests.unit.monitor.snapshots import sample, snapshot


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def filled(seconds: int, size: int = 100) -> History:
    """Utilization n/100 at second n, and a temperature at every second look only."""
    clock = Clock()
    history = History(size, clock=clock)
    for second in range(seconds):
        clock.now = float(second)
        history.add(snapshot(sample(utilization=second / 100, temperature_c=40.0 if second % 2 else None)))
    return history


def test_numbers_of_a_sample_and_of_its_pipes() -> None:
    full = sample(utilization=0.5, power_limit_w=700, fan=None, pipes=Pipes(1.0, sm_active=0.25), throttled_by=())
    assert numbers(full) == {"utilization": 0.5, "power_limit_w": 700.0, "sm_active": 0.25, "throttled": 0.0}
    assert numbers(full).keys() <= set(FIELDS)
    assert numbers(sample(throttled_by=("power limit",))) == {"throttled": 0.0}
    assert numbers(sample(throttled_by=("power limit", "heat (hardware)"))) == {"throttled": 1.0}


def test_series_leave_out_what_nobody_said() -> None:
    history = filled(4)
    assert history.series("GPU-0", "utilization") == ([0.0, 1.0, 2.0, 3.0], [0.0, 0.01, 0.02, 0.03])
    assert history.series("GPU-0", "temperature_c") == ([1.0, 3.0], [40.0, 40.0])
    assert history.series("GPU-0", "fan") == history.series("GPU-9", "utilization") == ([], [])


@pytest.mark.parametrize("seconds", [99, 100, 101, 250])
def test_only_the_newest_are_kept(seconds: int) -> None:
    times, values = filled(seconds).series("GPU-0", "utilization")
    assert times == [float(second) for second in range(max(0, seconds - 100), seconds)]
    assert values == [second / 100 for second in range(max(0, seconds - 100), seconds)]


def test_spans() -> None:
    history = filled(250)
    assert history.series("GPU-0", "utilization", last_s=2.0)[0] == [247.0, 248.0, 249.0]
    assert history.series("GPU-0", "utilization", since=200.0, until=201.5)[0] == [200.0, 201.0]
    window = history.window("GPU-0", "utilization", last_s=10.0)
    assert window is not None and (window.count, window.min, window.last) == (11, 2.39, 2.49)
    assert history.window("GPU-0", "utilization", since=300.0) is None


def test_windows_of_named_phases() -> None:
    clock = Clock()
    history = History(clock=clock)
    for phase, used in (("training", 1.0), ("evaluation", 0.5), ("training", 0.75)):
        with history.phase(phase):
            for _ in range(3):
                history.add(snapshot(sample(utilization=used)))
                clock.now += 1.0
        clock.now += 1.0
    evaluation, training = (history.window("GPU-0", "utilization", phase=name) for name in ("evaluation", "training"))
    assert evaluation is not None and (evaluation.mean, evaluation.count, evaluation.span_s) == (0.5, 3, 3.0)
    assert training is not None and training.mean == 0.75, "the newest of that name"
    assert history.span("evaluation") == (4.0, 7.0)
    assert history.window("GPU-0", "utilization", phase="testing") is None


def test_a_phase_that_still_runs_ends_now_and_one_that_failed_has_ended() -> None:
    clock = Clock()
    history = History(clock=clock)
    with pytest.raises(KeyError), history.phase("step"):
        clock.now = 3.0
        assert history.span("step") == (0.0, 3.0)
        raise KeyError
    clock.now = 9.0
    assert history.span("step") == (0.0, 3.0)


def test_of_what_the_rings_have_forgotten_a_total_is_kept() -> None:
    history = History(4, clock=Clock())
    for second, used in enumerate([70, 10, *[20] * 8]):
        history.add(snapshot(sample(memory_used_bytes=used)), now=float(second))
    window = history.window("GPU-0", "memory_used_bytes")
    assert window is not None
    assert (window.count, window.span_s, window.min, window.max, window.p50) == (10, 9.0, 10.0, 70.0, 20.0)
    assert window.mean == pytest.approx((70 + 10 + 7 * 20) / 9)
    newest = history.window("GPU-0", "memory_used_bytes", since=0.0)
    assert newest is not None and (newest.count, newest.max) == (4, 20.0)


def test_rates_come_from_counters_and_not_from_one_that_was_reset() -> None:
    history = History(clock=Clock())
    for second, sent in enumerate((1000, 3000, 100, 200)):
        history.add(snapshot(sample(nvlink_tx_bytes=sent)), now=2.0 * second)
    assert history.series("GPU-0", "nvlink_tx_bytes_per_s") == ([2.0, 6.0], [1000.0, 50.0])
    assert history.series("GPU-0", "nvlink_rx_bytes_per_s") == ([], [])


def test_instances_that_come_and_go_do_not_pile_up() -> None:
    history = History(4, clock=Clock())
    kept = sample()
    for number in range(MOST_GPUS + 10):
        instance = replace(kept, gpu=Gpu(f"MIG-{number}", "MIG", 0, 1, (9, 0), parent="GPU-0"))
        history.add(snapshot(kept, instance), now=float(number))
    assert len(history._rings) == MOST_GPUS
    assert {"GPU-0", f"MIG-{MOST_GPUS + 9}"} <= history._rings.keys() and "MIG-0" not in history._rings


def test_its_size_does_not_grow() -> None:
    history = filled(100)
    rings = history._rings["GPU-0"]
    size = len(rings.times), {name: len(ring) for name, ring in rings.values.items()}
    for second in range(1000):
        history.add(snapshot(sample(utilization=0.5, temperature_c=40.0)), now=100.0 + second)
    assert (len(rings.times), {name: len(ring) for name, ring in rings.values.items()}) == size
    assert not any(math.isnan(value) for value in rings.times)


def test_a_child_forked_while_the_lock_is_held_can_read_it() -> None:
    history = filled(3)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with history._lock:
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        child = os.fork()
        if not child:
            os._exit(len(history.series("GPU-0", "utilization")[0]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    finally:
        release.set()
        holder.join()
