"""How long one decision of the job scheduler takes.

Usage: python benchmarks/scheduling.py [--repeats 30]. Prints a table, in milliseconds: quickest, median and slowest of
the repeats by the clock, and the median CPU time. `free` is the share of devices that nobody holds. Jobs are of 50
owners and 21 priorities; a tenth is elastic, a tenth asks for memory, and about half may be preempted. Groups of eight
devices.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence

from drumline.config.service import SchedulingConfig
from drumline.jobs.records import Device, Inventory, Job, Lease, Resources, Work
from drumline.jobs.scheduler import Decision, decide

NOW = 1_800_000_000.0
GIB = 2**30
WORK = Work("train", {})


def resources(chance: random.Random) -> Resources:
    """What one of many jobs asks for."""
    size, kind, priority = chance.choice((1, 1, 1, 2, 4, 8, 16)), chance.random(), chance.randint(-10, 10)
    if kind < 0.1:
        return Resources(min_devices=size, max_devices=size * 4, priority=priority)
    memory = 40 * GIB if kind < 0.2 else None
    return Resources(size, memory_bytes=memory, priority=priority, preemptible=kind < 0.6)


def machine(devices: int) -> Inventory:
    """A machine with as many devices, the last of every hundred sick."""
    return Inventory(
        "node",
        NOW,
        tuple(
            Device(f"GPU-{number:04}", 80 * GIB, "sick" if number % 100 == 99 else None, number // 8)
            for number in range(devices)
        ),
        has_gpus=True,
    )


def situation(queued: int, inventory: Inventory, free: float) -> tuple[list[Job], list[Lease]]:
    """So many jobs that wait, and running ones that hold all devices but the share `free`."""
    chance = random.Random(queued)
    jobs = [
        Job(
            f"job-{number:05}",
            f"owner-{chance.randrange(50)}",
            WORK,
            resources(chance),
            NOW,
            queued_since=NOW - 7200 * chance.random(),
        )
        for number in range(queued)
    ]
    leases: list[Lease] = []
    left = [device.id for device in inventory.devices]
    left = left[round(free * len(left)) :]
    while left:
        asked = resources(chance)
        name, held, left = f"run-{len(leases):05}", tuple(left[: asked.least]), left[asked.least :]
        began = NOW - 7200 * chance.random()
        jobs.append(
            Job(
                name,
                "owner-1",
                WORK,
                asked,
                began,
                "running",
                devices=held,
                queued_since=began,
                attempt_began=began,
            )
        )
        leases += [Lease(device, "node", name, began, NOW + 30) for device in held]
    return jobs, leases


def timed(
    jobs: Sequence[Job], leases: Sequence[Lease], inventory: Inventory, repeats: int
) -> tuple[Decision, list[tuple[float, float]]]:
    """One decision and the milliseconds, by the clock and of CPU time, of each time that it was made."""
    policy = SchedulingConfig()
    usage = {f"owner-{number}": 3600.0 * number for number in range(50)}
    took = []
    for _ in range(repeats):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        decision = decide(jobs, leases, inventory, NOW, policy, usage)
        took.append(((time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3))
    return decision, took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print(
        f"{'queued':>7}{'devices':>9}{'free':>6}{'starts':>8}{'stops':>7}{'quickest':>10}{'median':>8}{'slowest':>9}{'CPU':>7}"
    )
    for queued, devices, free in (
        (100, 8, 0.25),
        (1_000, 8, 0.25),
        (1_000, 1_000, 0.25),
        (10_000, 1_000, 0.25),
        (1_000, 1_000, 0.0),
        (1_000, 1_000, 1.0),
        (10_000, 1_000, 1.0),
    ):
        inventory = machine(devices)
        decision, took = timed(*situation(queued, inventory, free), inventory, repeats)
        walls, cpu = sorted(wall for wall, _ in took), statistics.median(cpu for _, cpu in took)
        done = f"{len(decision.starts):>8}{len(decision.stops):>7}"
        times = f"{walls[0]:>10.2f}{walls[len(walls) // 2]:>8.2f}{walls[-1]:>9.2f}{cpu:>7.2f}"
        print(f"{queued:>7}{devices:>9}{free:>6.0%}{done}{times}")


if __name__ == "__main__":
    main()
