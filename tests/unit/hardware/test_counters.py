"""Counters that are dear to read: now and then by themselves, in between by the rates that are known."""

from __future__ import annotations

from drumline.hardware.sample import take
from drumline.hardware.session import Session
from tests.simulated_nvml import NOT_SUPPORTED, SimulatedGpu, SimulatedNvml

LINKS = 0xFFFFFFFF


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def working() -> SimulatedGpu:
    gpu = SimulatedGpu("GPU-a", gpm={2: 90.0, 20: 2.0, 21: 5.0})
    gpu.fields |= {83: 9_000_000, (138, LINKS): 3, (139, LINKS): 4}
    return gpu


def test_between_two_readings_of_the_energy_counter_the_power_is_added_up() -> None:
    clock, gpu = Clock(), working()
    gpu.values |= {"nvmlDeviceGetPowerUsage": 500_000}
    told: list[float] = []
    with Session(SimulatedNvml([gpu]), clock=clock) as session:
        for _ in range(25):
            told.append(take(session, counters_every_s=10.0).gpus[0].energy_j or 0.0)
            clock.now += 1.0
            gpu.fields[83] += 480_000  # the counter knows better
    assert told[:10] == [9000.0 + 500.0 * second for second in range(10)]
    assert told[10] == told[9] + 300.0 == 9000.0 + 4800.0  # read
    assert told[11:20] == [13_800.0 + 500.0 * second for second in range(1, 10)]
    assert told[20] == told[19] + 300.0 == 9000.0 + 9600.0
    assert told == sorted(told)


def test_an_energy_counter_that_is_behind_the_power_added_up_waits() -> None:
    clock, gpu = Clock(), working()
    gpu.values |= {"nvmlDeviceGetPowerUsage": 500_000}
    with Session(SimulatedNvml([gpu]), clock=clock) as session:

        def joules() -> float | None:
            return take(session, counters_every_s=10.0).gpus[0].energy_j

        assert joules() == 9000.0
        clock.now += 9.0
        assert joules() == 13_500.0
        clock.now += 2.0
        gpu.fields[83] = 13_000_000
        assert joules() == 13_500.0, "counters do not go back"
        clock.now += 11.0
        gpu.fields[83] = 20_000  # the driver was loaded again
        assert joules() == 20.0


def test_between_two_readings_of_nvlinks_counters_gpms_rates_are_added_up() -> None:
    clock, gpu = Clock(), working()
    gpu.gpm = {**(gpu.gpm or {}), 60: 3.0, 61: 2.0}  # MiB a second, in and out
    gpu.fields |= {(138, LINKS): 1024 * 7, (139, LINKS): 1024 * 11}  # KiB, out and in
    mib, told = 1 << 20, []
    with Session(SimulatedNvml([gpu]), clock=clock) as session:
        for _ in range(12):
            (sample,) = take(session, counters_every_s=10.0).gpus
            told.append((sample.nvlink_tx_bytes, sample.nvlink_rx_bytes))
            clock.now += 1.0
            gpu.fields[(138, LINKS)] += 1024 * 4  # more than the rates say
            gpu.fields[(139, LINKS)] += 1024 * 3
    assert told[:10] == [((7 + 2 * second) * mib, (11 + 3 * second) * mib) for second in range(10)]
    assert told[10] == ((7 + 4 * 10) * mib, (11 + 3 * 10) * mib), "read"
    assert told[11] == ((7 + 4 * 10 + 2) * mib, (11 + 3 * 11) * mib)


def test_without_gpm_nvlinks_counters_are_read_at_each_look() -> None:
    clock, gpu = Clock(), working()
    gpu.gpm = None
    gpu.fields |= {(138, LINKS): 0, (139, LINKS): 0}
    with Session(SimulatedNvml([gpu]), clock=clock) as session:
        for second in range(5):
            assert take(session, counters_every_s=10.0).gpus[0].nvlink_tx_bytes == second * 2048.0
            clock.now += 1.0
            gpu.fields[(138, LINKS)] += 2


def test_without_power_or_counter_each_look_asks() -> None:
    clock, gpu = Clock(), working()
    gpu.errors["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    with Session(SimulatedNvml([gpu]), clock=clock) as session:
        for _ in range(3):
            (sample,) = take(session, counters_every_s=10.0).gpus
            assert sample.power_w is None and sample.energy_j == gpu.fields[83] / 1000
            clock.now += 1.0
            gpu.fields[83] += 7_000
