"""Energy that GPUs took, by their own counters or by the power they drew, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drumline.hardware.records import GpuSample, Snapshot

if TYPE_CHECKING:
    from drumline.config.monitor import MonitorConfig

LONGEST_GAP_S = 60.0
"""Two looks further apart say nothing about the power in between; a counter still does."""
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Energy:
    """What one GPU took over a time."""

    joules: float = 0.0
    """At least: what nobody told is not in it."""
    seconds: float = 0.0
    """Time for which it is known."""
    unknown_s: float = 0.0
    """Time for which neither the counter nor the power is."""
    integrated_s: float = 0.0
    """Part of `seconds` that was added up from the power drawn at each look, not read from the counter."""
    resets: int = 0
    """How often the counter started anew: the driver was loaded again, or the GPU was reset."""


def spent(energy: Energy, before: GpuSample, after: GpuSample) -> Energy:
    """Pure: `energy` with what the GPU took between two samples of it (times from GpuSample.time, s)."""
    passed = after.time - before.time
    if passed <= 0:
        return energy
    reset = before.energy_j is not None and after.energy_j is not None and after.energy_j < before.energy_j
    if before.energy_j is not None and after.energy_j is not None and not reset:
        joules = energy.joules + after.energy_j - before.energy_j
        return replace(energy, joules=joules, seconds=energy.seconds + passed)
    energy = replace(energy, resets=energy.resets + reset)
    if before.power_w is None or after.power_w is None or passed > LONGEST_GAP_S:
        # What the counter shows after a reset was taken since then, so in this time.
        since = after.energy_j if reset and after.energy_j is not None else 0.0
        return replace(energy, joules=energy.joules + since, unknown_s=energy.unknown_s + passed)
    return replace(
        energy,
        joules=energy.joules + passed * (before.power_w + after.power_w) / 2,
        seconds=energy.seconds + passed,
        integrated_s=energy.integrated_s + passed,
    )


class EnergyMeter:
    """Adds up the energy of each GPU from one Snapshot to the next; holds one sample a GPU."""

    def __init__(self) -> None:
        self._last: dict[str, GpuSample] = {}
        self._spent: dict[str, Energy] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Take in a Snapshot that is newer than the one before."""
        for sample in snapshot.gpus:
            uuid = sample.gpu.uuid
            before = self._last.get(uuid)
            if before is not None:
                self._spent[uuid] = spent(self._spent.get(uuid, Energy()), before, sample)
            self._last[uuid] = sample

    def of(self, uuid: str) -> Energy | None:
        """What that GPU took between its first and its newest look; None before there were two."""
        return self._spent.get(uuid)

    def joules(self, uuids: Iterable[str] | None = None) -> float | None:
        """Of these GPUs together (None: all); None where nothing is known of any."""
        energies = [self._spent.get(uuid) for uuid in (self._spent if uuids is None else uuids)]
        known = [energy for energy in energies if energy is not None and (energy.seconds > 0 or energy.joules > 0)]
        return sum(energy.joules for energy in known) if known else None


def cost(joules: float, gpu_hours: float, prices: MonitorConfig) -> float:
    """Pure: what energy and GPU time cost together, in the currency of the settings' prices."""
    return joules / JOULES_PER_KWH * prices.price_per_kwh + gpu_hours * prices.price_per_gpu_hour
