"""`drumline bench train`: updates, timed; every rank runs this."""

from __future__ import annotations

import itertools
import resource
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from drumline import __version__
from drumline.bench.phases import Phases, TimedStrategy
from drumline.config.schema import RunConfig
from drumline.config.train import ProfileConfig
from drumline.engine.callbacks import Callback
from drumline.engine.records import StepInfo
from drumline.engine.timing import DeviceClock, Mark
from drumline.engine.trainer import Options, Trainer
from drumline.hardware.state import read_state
from drumline.parallel.strategy import Strategy
from drumline.rundir import read_json
from drumline.track.profile_page import SUMMARY
from drumline.track.samples import measured, num_warm_up

WATCHED = 5
"""Updates whose phases are timed apart, and updates in the profiler's window, after the timed ones."""


@dataclass(frozen=True)
class Lengths:
    """How many updates of each kind, one after the other."""

    warm_up: int
    """Left out of all numbers."""
    timed: int
    phases: int = WATCHED
    profiled: int = WATCHED

    @property
    def total(self) -> int:
        """All of them."""
        return self.warm_up + self.timed + self.phases + self.profiled


@dataclass(frozen=True)
class Timed:
    """What one rank saw of a benchmark."""

    step_s: list[float]
    """Of the updates after the warm-up, from the end of the one before to their own."""
    samples: list[int]
    """Over all shards, an update each."""
    units: list[int]
    phases: list[Phases]
    memory: list[dict[str, int]]
    """Of this process, or of each of its GPUs."""
    machine: dict[str, Any]
    """The machine right after the last timed update."""


class MeasuredTrainer(Trainer):
    """A trainer whose updates can be timed, and which tells what is known of its run."""

    def watch(self) -> TimedStrategy:
        """Put marks around the strategy; before the first update."""
        run = self._run
        timed = TimedStrategy(run.strategy, run.groups.device)
        run.strategy = cast(Strategy, timed)
        return timed

    @property
    def device(self) -> torch.device:
        """The device of this process, the first of them under data_parallel."""
        return self._run.groups.device

    @property
    def devices(self) -> list[torch.device]:
        """All of them."""
        if self.device.type == "cuda" and self._run.plan.kind == "data_parallel":
            return list(self._run.groups.devices)
        return [self.device]

    def gather(self, value: Any) -> Sequence[Any]:
        """Every rank's value (JSON), in rank order; all ranks call it."""
        return self._run.groups.side.exchange("benchmark", value)

    def facts(self) -> dict[str, Any]:
        """Plan, unit and peak rate of the run."""
        run = self._run
        return {
            "plan": run.plan.to_json(),
            "unit": getattr(run.task, "unit", "samples"),
            "flops_per_unit": run.flops_per_unit,
            "peak_flops": run.peak_flops,
            "parameters": sum(p.numel() for p in run.model.parameters()),
            "device": device_name(run.groups.device),
            "versions": {"drumline": __version__, "torch": torch.__version__, "cuda": torch.version.cuda},
        }


class Watch(Callback):
    """Times updates where the loop hands them out."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._marks: list[Mark] = []
        self._infos: list[tuple[int, int]] = []
        self._seen = 0

    def on_start(self, trainer: Trainer) -> None:
        """Before the first update."""
        assert isinstance(trainer, MeasuredTrainer)
        self._strategy = trainer.watch()
        self._clock = DeviceClock(trainer.device)

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        """After each update; only at the edges of a kind does the host wait for the device."""
        assert isinstance(trainer, MeasuredTrainer)
        self._seen += 1
        warm_up, timed = self._lengths.warm_up, self._lengths.timed
        if self._seen >= warm_up and len(self._marks) <= timed:
            for device in trainer.devices if self._seen == warm_up and trainer.device.type == "cuda" else ():
                torch.cuda.reset_peak_memory_stats(device)
            self._marks.append(self._clock.mark())
            self._infos.append((info.samples, info.units))
        if self._seen == warm_up + timed:
            self._clock.drain()
            self.memory = [memory_of(device) for device in trainer.devices]
            self.machine = read_state(trainer.facts()["plan"]["gpus"]).to_json()
        self._strategy.watching = 0 <= self._seen - warm_up - timed < self._lengths.phases

    def timed(self) -> Timed:
        """What was seen; after the last update."""
        phases = self._strategy.take()
        marks = self._marks
        step_s = [self._clock.seconds(a, b) for a, b in itertools.pairwise(marks)]
        samples, units = zip(*self._infos[1:], strict=True)
        return Timed(step_s, list(samples), list(units), phases, self.memory, self.machine)


def prepared(config: RunConfig, lengths: Lengths) -> RunConfig:
    """The config of a benchmark: as many updates as are wanted and nothing beside them; all else stays as it is."""
    train = config.train.model_copy(
        update={
            "max_steps": lengths.total,
            "epochs": None,
            "schedule": type(config.train.schedule)(name="constant"),
            "profile": ProfileConfig(start=lengths.total - lengths.profiled, steps=lengths.profiled)
            if lengths.profiled
            else None,
        }
    )
    return config.model_copy(
        update={
            "train": train,
            "checkpoint": config.checkpoint.model_copy(update={"every": None, "at_end": False}),
            "track": config.track.model_copy(update={"console": False, "tensorboard": False}),
            "evaluate": type(config.evaluate)(every="end"),
            "faults": config.faults.model_copy(update={"stop_signals": []}),  # what it has timed needs no saving
        }
    )


def bench_train(model: nn.Module, config: RunConfig, train: Any, options: Options, lengths: Lengths) -> dict[str, Any]:
    """Train as many updates as the lengths say; the result, on all ranks alike. Changes the weights."""
    watch = Watch(lengths)
    kept: Any = {name: value for name, value in options.items() if name != "eval_data"}
    callbacks = [watch, *options.get("callbacks", ())]
    with MeasuredTrainer(model, prepared(config, lengths), train, **{**kept, "callbacks": callbacks}) as trainer:
        trainer.fit()
        by_rank = trainer.gather(vars(watch.timed()))
        summary = trainer.run_dir / "profile" / SUMMARY
        profile = read_json(summary) if summary.exists() else {}
        return result_of(trainer.facts(), [of_json(each) for each in by_rank], profile)


def of_json(values: Mapping[str, Any]) -> Timed:
    """A rank's numbers as they came over the side channel."""
    return Timed(**{**values, "phases": [Phases(*each) for each in values["phases"]]})


def result_of(facts: Mapping[str, Any], by_rank: Sequence[Timed], profile: Mapping[str, Any]) -> dict[str, Any]:
    """The result file's content. A step is as long as on the rank where it took longest."""
    first = by_rank[0]
    steps = [max(each) for each in zip(*(rank.step_s for rank in by_rank), strict=True)]
    dropped = num_warm_up(steps)
    kept = steps[dropped:]
    median = statistics.median(kept)
    # Shorter windows at an epoch's end have shorter steps: both by their medians.
    units, samples = (statistics.median(each[dropped:]) for each in (first.units, first.samples))
    flops, peak = facts["flops_per_unit"], facts["peak_flops"]
    gpus = len(facts["plan"]["gpus"]) if facts["plan"]["kind"] == "data_parallel" else facts["plan"]["world_size"]
    return {
        **facts,
        "step_s": {**measured(kept), "warm_up_dropped": dropped},
        "units_per_s": units / median,
        "samples_per_s": samples / median,
        "mfu": None if flops is None or peak is None else units / median * flops / (peak * max(gpus, 1)),
        "phases": phases_by_median(by_rank, median),
        "memory": [memory for rank in by_rank for memory in rank.memory],
        "breakdown": profile.get("breakdown", []),
        "verdict": profile.get("verdict"),
        "message": profile.get("message"),
        "kernels": profile.get("kernels") or profile.get("operators", []),
        "machine": {"under_load": first.machine},
    }


def phases_by_median(by_rank: Sequence[Timed], step_s: float) -> dict[str, float]:
    """Median of each phase over ranks and updates, and what is left of a step for everything else."""
    found = [phases for rank in by_rank for phases in rank.phases]
    if not found:
        return {}
    medians = {name: statistics.median(getattr(each, name) for each in found) for name in Phases._fields}
    return {**medians, "rest_s": max(step_s - sum(medians.values()), 0.0)}


def memory_of(device: torch.device) -> dict[str, int]:
    """Most bytes so far: of tensors and of torch's allocator on the GPU, or resident on the CPU."""
    if device.type != "cuda":
        return {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(device),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def device_name(device: torch.device) -> str:
    """The card, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
