"""How this machine's GPUs are used best: by their health, by the rule that chooses a kind, by their memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from drumline.config.schema import RunConfig
from drumline.errors import DrumlineError
from drumline.hardware.health import Verdict
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.jobs.records import Inventory
from drumline.plan.memory import UNKNOWN_ACTIVATIONS, ModelFacts, gib, replicated, room
from drumline.plan.resolve import resolve

Level = Literal["info", "warn", "fail"]
Method = Literal["dataparallel", "distributed", "auto"]

SAMPLE_PARAMETERS = 1_000_000_000
"""The sum for so many gives the bytes of one."""


@dataclass(frozen=True)
class Advice:
    """One thing to know or to do."""

    subject: str
    """UUID of a GPU, or `machine`."""
    level: Level
    message: str
    action: str = ""
    source: str = ""


@dataclass(frozen=True)
class Recommendation:
    """How trainings should use this machine."""

    method: Method
    config: Mapping[str, Any]
    """Fields of GPUConfig."""
    reasons: Mapping[str, str]
    """By field, and `method`."""
    advice: tuple[Advice, ...]


def recommend(
    gpus: Sequence[Gpu],
    verdicts: Mapping[str, Verdict],
    inventory: Inventory,
    *,
    host: Host,
    source: str,
    memory_fraction: float = 0.9,
) -> Recommendation:
    """What fits a machine with these GPUs. source: where they are known from, or why there are none."""
    unusable = {device.id: device.unusable for device in inventory.devices if device.unusable}
    usable = [gpu for gpu in gpus if gpu.uuid not in unusable]
    advice = [each for gpu in gpus for each in _of_gpu(gpu, verdicts.get(gpu.uuid), unusable.get(gpu.uuid))]
    config: dict[str, Any] = {"use_multi_gpu": len(usable) > 1, "backend": "nccl" if usable else "gloo"}
    reasons = {
        "use_multi_gpu": f"{len(usable)} of {len(gpus)} GPUs can be used" if gpus else f"there is no GPU: {source}",
        "backend": "NCCL is the fastest between GPUs" if usable else "gloo works between processes on the CPU",
    }
    if usable and len(usable) < len(gpus):
        config["gpu_ids"] = [gpu.index for gpu in usable]
        reasons["gpu_ids"] = "the others are left out: " + "; ".join(
            f"GPU {gpu.index}: {unusable[gpu.uuid]}" for gpu in gpus if gpu.uuid in unusable
        )
    method: Method = "auto"
    try:
        plan = resolve(_neutral(max(1, len(usable))), Hardware(tuple(usable), host, source))
    except DrumlineError as error:  # a machine on which nothing can be planned still gets the rest
        reasons["method"] = error.problem
    else:
        method = "distributed" if plan.kind in ("ddp", "fsdp") else "auto"
        config["mixed_precision"] = plan.precision not in ("fp32", "tf32")
        reasons |= {"method": plan.reasons["kind"], "mixed_precision": plan.reasons["precision"]}
    advice += _sizes(usable, memory_fraction)
    if len({gpu.name for gpu in usable}) > 1:
        names = ", ".join(sorted({gpu.name for gpu in usable}))
        advice.append(
            Advice(
                "machine",
                "warn",
                f"its GPUs are of different kinds ({names}): each update waits for the slowest",
                "name the fast ones in gpu_ids, or set parallel.balance to measured",
            )
        )
    return Recommendation(method, config, reasons, tuple(advice))


def _neutral(num_devices: int) -> RunConfig:
    return RunConfig.model_validate({"train": {"global_batch": 8 * num_devices, "max_steps": 1}})


def _of_gpu(gpu: Gpu, verdict: Verdict | None, unusable: str | None) -> list[Advice]:
    found = [
        Advice(
            gpu.uuid, "fail" if finding.status == "fail" else "warn", finding.message, finding.action, finding.source
        )
        for finding in (() if verdict is None else verdict.findings)
        if finding.status != "ok"
    ]
    if unusable is not None and not unusable.startswith("sick"):
        found.append(Advice(gpu.uuid, "warn", unusable, "end what is on it, or leave it to them"))
    return found


def _sizes(gpus: Sequence[Gpu], memory_fraction: float) -> list[Advice]:
    """How large a model may be whose whole training state lies on one GPU, and over how many more it must be spread."""
    there = room(tuple(gpus), memory_fraction)
    if there is None or not gpus:
        return []
    facts = ModelFacts(SAMPLE_PARAMETERS, SAMPLE_PARAMETERS, 4 * SAMPLE_PARAMETERS, 0, 0)
    config = _neutral(len(gpus))
    each = replicated(facts, config, "bf16", 1).state / SAMPLE_PARAMETERS
    most = int(there.usable * UNKNOWN_ACTIVATIONS / each)
    message = (
        f"up to about {most / 1e9:.2g} billion parameters can be trained whole on each GPU "
        f"({each:.3g} bytes a parameter, half of {gib(there.usable)} left to activations)"
    )
    more = "larger ones are sharded over the GPUs (fsdp), which auto does by itself" if len(gpus) > 1 else ""
    return [Advice("machine", "info", message, more or "train an adapter (model.adapter) of a larger one", "plan")]
