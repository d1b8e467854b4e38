"""The plan: every number that a run derives from its config and machine, each with its reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    """What `resolve` decided. `reasons` has one sentence for each field below it, by the field's name."""

    kind: str
    """Strategy: single, data_parallel, ddp or fsdp."""
    device: str
    """cuda or cpu."""
    gpus: tuple[str, ...]
    """UUIDs of this machine's GPUs that the run uses, one a local worker, or all of one worker; empty on CPU."""
    world_size: int
    """Processes over all machines."""
    num_shards: int
    """Shards that each update's samples are divided into: one a process, under data_parallel one a replica."""
    backend: str
    """nccl or gloo between processes; none where there is one."""
    global_batch: int
    """Samples an update, over everything."""
    micro_batch: int
    """Most samples in one forward pass of one shard."""
    accumulation: int
    """Most forward passes a shard makes for one update."""
    precision: str
    """fp32, tf32, bf16 or fp16."""
    num_workers: int
    """Loader processes a rank."""
    steps: int | None
    """Updates of the whole run; None until the number of rows is known."""
    steps_per_epoch: int | None
    """Updates an epoch; None until the number of rows is known."""
    memory_bytes: int | None = field(default=None, kw_only=True)
    """What training takes of each device, by arithmetic; None where not known."""
    reasons: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The plan as plan.json holds it."""
        return asdict(self)
