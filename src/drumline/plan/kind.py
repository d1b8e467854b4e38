"""Chooses the kind of parallelism: what was asked for, or by what fits the devices."""

from __future__ import annotations

from typing import NamedTuple

from drumline.config.parallel import FsdpParallel
from drumline.config.problem import listed
from drumline.config.schema import RunConfig
from drumline.plan.devices import Devices
from drumline.plan.memory import ModelFacts, Need, Room, fits, replicated, room, sharded, verdict

ALONE = ", though there is one process: it computes what single would"


class Kind(NamedTuple):
    """The strategy, what it takes of each device, and why."""

    kind: str
    why: str
    memory_bytes: int | None
    why_memory: str


class _Sums(NamedTuple):
    """What is known of model and devices, for one run."""

    facts: ModelFacts
    there: Room
    config: RunConfig
    precision: str
    micro_batch: int
    size: int

    def need(self, kind: str) -> Need:
        """Of a device under this kind; fsdp of one process is single."""
        if kind == "fsdp" and self.size > 1:
            return sharded(self.facts, self.config, self.precision, self.micro_batch, self.size)
        return replicated(self.facts, self.config, self.precision, self.micro_batch)

    def fits(self, kind: str) -> bool:
        """Whether that is there."""
        return fits(self.need(kind), self.there)

    def verdict(self, kind: str) -> str:
        """The same in words, with the numbers."""
        return verdict(self.facts, self.need(kind), self.there)

    def advice(self, kind: str) -> str:
        """What would make it fit."""
        need, train = self.need(kind), self.config.train
        sharding = kind == "fsdp" and self.size > 1
        helps = []
        if need.activations is None or need.state + need.gathered > self.there.usable:
            helps.append("more GPUs" if sharding else "parallel.kind fsdp over several GPUs")
            if sharding and not (isinstance(self.config.parallel, FsdpParallel) and self.config.parallel.offload):
                helps.append("parallel.offload with parallel.kind fsdp")
            if train.optimizer.name == "adamw" and train.optimizer.state_precision == "same":
                helps.append("train.optimizer.state_precision bf16")
        if need.state + need.gathered <= self.there.usable or need.activations:
            if train.checkpointing.kind == "none":
                helps.append("train.checkpointing.kind full")
            if self.micro_batch > 1:
                helps.append(f"a train.micro_batch below {self.micro_batch}")
        return listed(helps or ["a smaller model"])


def choose_kind(
    config: RunConfig, devices: Devices, precision: str, micro_batch: int, facts: ModelFacts | None
) -> Kind:
    """Take the kind that was asked for; for auto single where there is one process, ddp where it fits, else fsdp.

    A kind that was asked for is kept where it does not fit: the estimate may be wrong, and the reason says so.
    """
    there = room(devices.gpus, config.hardware.memory_fraction)
    if facts is None or there is None:
        missing = _missing(devices, facts)
        kind, why = _without_sums(config, devices, missing)
        return Kind(kind, why, None, f"not known: {missing}")
    sums = _Sums(facts, there, config, precision, micro_batch, devices.size)
    kind, why = _by_memory(config, devices, sums)
    return Kind(kind, why, sums.need(kind).total, sums.verdict(kind))


def _missing(devices: Devices, facts: ModelFacts | None) -> str:
    if devices.device == "cpu":
        return "memory is not planned on the CPU"
    if facts is None:
        return "the size of the model is not known here"
    silent = [str(gpu.index) for gpu in devices.gpus if gpu.memory_bytes is None]
    return f"the memory of GPU {listed(silent, 'and')} is not known"


def _without_sums(config: RunConfig, devices: Devices, missing: str) -> tuple[str, str]:
    kind = config.parallel.kind
    if kind != "auto":
        return kind, f"parallel.kind asks for {kind}{ALONE if _is_alone(kind, devices) else ''}"
    if devices.size == 1:
        return "single", "auto: one process has nobody to share with"
    why = f"auto: {devices.size} processes, each with the whole model, share every update"
    return "ddp", why if devices.device == "cpu" else f"{why}; whether it fits was not looked at: {missing}"


def _by_memory(config: RunConfig, devices: Devices, sums: _Sums) -> tuple[str, str]:
    kind = config.parallel.kind
    if kind == "auto" and devices.size > 1:
        if sums.fits("ddp"):
            return "ddp", f"auto: {sums.verdict('ddp')}: ddp"
        why = f"auto: {sums.verdict('ddp')}; {sums.verdict('fsdp')}: fsdp"
        if sums.fits("fsdp"):
            return "fsdp", why
        return "fsdp", f"{why}, which may run out of memory; {sums.advice('fsdp')} would help"
    if kind == "auto":
        kind, why = "single", "auto: one process has nobody to share with"
    else:
        why = f"parallel.kind asks for {kind}{ALONE if _is_alone(kind, devices) else ''}"
    if not sums.fits(kind):
        why += f"; it may run out of memory, as {sums.verdict(kind)}: {sums.advice(kind)} would help"
    return kind, why


def _is_alone(kind: str, devices: Devices) -> bool:
    return kind in ("ddp", "fsdp") and devices.size == 1
