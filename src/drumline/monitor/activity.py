"""What a GPU that counts as used really does: work, move data, or wait inside a kernel for somebody else.

The driver's utilization says only whether any kernel ran. A collective's kernel that waits for a slower rank runs all
the time, so a run that hangs shows 100%. Only the units themselves tell the two apart: NVML's GPM, Hopper and later.
The limits below are ours; what is near none of them is called unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drumline.hardware.records import GpuSample, Pipes

Kind = Literal["idle", "working", "communicating", "waiting", "unknown"]

IDLE_UTILIZATION = 0.02
"""Share of time with a kernel up to which a GPU is idle: a desktop or a look at it now and then is no use of it."""
FEW_SMS = 0.5
"""Share of the multiprocessors up to which a kernel may be a collective's: NCCL runs a block a channel and has 64 at
most (MAXCHANNELS in its device.h), an H100 has 132 multiprocessors."""
QUIET_MATH = 0.005
"""Share of time up to which tensor cores and floating-point units together count as doing nothing."""
QUIET_DRAM = 0.02
"""Share of the memory's bandwidth up to which it counts as unused; a waiting kernel reads one flag again and again."""
LINK_BYTES_PER_S = 1e9
"""Traffic over NVLink or PCIe from which a GPU moves data: a few percent of what the slower one does."""
HIGH_POWER = 0.5
"""Share of the power limit from which a GPU works, where nobody tells of its units: waiting takes far less."""
HIGH_MEMORY_UTILIZATION = 0.1
"""Share of time with memory traffic from which a GPU works, where nobody tells of its units."""

LONGEST_APART_S = 60.0
"""Two looks further apart say how much went over NVLink in between, but not what the GPU does now."""


@dataclass(frozen=True)
class Activity:
    """What a GPU does, and by what one can tell."""

    kind: Kind
    reason: str


def activity(sample: GpuSample, before: GpuSample | None = None) -> Kind:
    """Pure: what a GPU does. before: an earlier sample of it, without which traffic over NVLink is not known."""
    return explain(sample, before).kind


def explain(sample: GpuSample, before: GpuSample | None = None) -> Activity:
    """Pure: what a GPU does, with the reason in words."""
    pipes = sample.pipes
    if before is not None and not 0 < sample.time - before.time <= LONGEST_APART_S:
        before = None
    link = link_bytes_per_s(sample, before)
    moves = link is not None and link >= LINK_BYTES_PER_S
    used = sample.utilization if sample.utilization is not None else None if pipes is None else pipes.sm_active
    if used is None:
        return Activity("unknown", "the driver says nothing about its use")
    traffic = "" if link is None else f", {link / 1e9:.1f} GB/s over its links"
    if used <= IDLE_UTILIZATION:
        if moves:
            return Activity("communicating", f"no kernel runs{traffic}")
        return Activity("idle", f"a kernel runs for {used:.0%} of the time")
    if pipes is None or pipes.sm_active is None:
        return _without_pipes(sample, used, moves, traffic)
    math = _math(pipes)
    seen = f"{pipes.sm_active:.0%} of the multiprocessors active, {math or 0:.1%} of the time with arithmetic{traffic}"
    if pipes.sm_active > FEW_SMS or (math is not None and math > QUIET_MATH):
        return Activity("working", seen)
    if math is None:
        return Activity("unknown", f"few multiprocessors are active, and nobody says what they do{traffic}")
    if moves:
        return Activity("communicating", seen)
    if pipes.dram_active is not None and pipes.dram_active > QUIET_DRAM:
        return Activity("working", f"{seen}, memory at {pipes.dram_active:.0%} of its bandwidth")
    if before is None and sample.nvlink_tx_bytes is not None:
        return Activity("unknown", f"{seen}; whether data moves over NVLink takes two looks to tell")
    return Activity("waiting", f"a kernel runs for {used:.0%} of the time, but only {seen}")


def link_bytes_per_s(sample: GpuSample, before: GpuSample | None) -> float | None:
    """Pure: bytes a second over NVLink and PCIe, the busier direction of each; None where nobody says."""
    rates = [rate for rate in (sample.pcie_tx_bytes_per_s, sample.pcie_rx_bytes_per_s) if rate is not None]
    total = max(rates) if rates else None
    if before is not None and sample.time > before.time:
        pairs = (
            (before.nvlink_tx_bytes, sample.nvlink_tx_bytes),
            (before.nvlink_rx_bytes, sample.nvlink_rx_bytes),
        )
        grown = [later - earlier for earlier, later in pairs if earlier is not None and later is not None]
        if grown and min(grown) >= 0:  # a counter that fell was reset
            total = (total or 0.0) + max(grown) / (sample.time - before.time)
    return total


def _math(pipes: Pipes) -> float | None:
    """Share of time in which tensor cores or floating-point units worked, added up; None where nobody says."""
    parts = (pipes.tensor_active, pipes.fp16_active, pipes.fp32_active, pipes.fp64_active)
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _without_pipes(sample: GpuSample, used: float, moves: bool, traffic: str) -> Activity:
    """For GPUs before Hopper: much power or memory traffic is work; little of both may be anything."""
    power, limit, memory = sample.power_w, sample.power_limit_w, sample.memory_utilization
    share = power / limit if power is not None and limit else None
    if share is not None and share >= HIGH_POWER:
        return Activity("working", f"a kernel runs for {used:.0%} of the time, at {share:.0%} of the power limit")
    if memory is not None and memory >= HIGH_MEMORY_UTILIZATION:
        return Activity("working", f"a kernel runs for {used:.0%} of the time, its memory is busy for {memory:.0%}")
    if moves:
        return Activity("communicating", f"a kernel runs for {used:.0%} of the time{traffic}")
    return Activity(
        "unknown", f"a kernel runs for {used:.0%} of the time; this GPU does not say whether it works or waits"
    )
