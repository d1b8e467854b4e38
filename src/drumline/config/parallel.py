"""How a model is spread: one kind a class, each with its own fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat


class Kind(BaseModel):
    """What every kind has."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="auto: nccl between GPUs, gloo between CPU processes."
    )
    timeout_s: PositiveFloat = Field(600.0, description="Longest wait for the other ranks.")


class AutoParallel(Kind):
    """Single for one process, ddp for several."""

    kind: Literal["auto"] = "auto"


class SingleParallel(Kind):
    """One process, one device, no communication."""

    kind: Literal["single"] = "single"


class DdpParallel(Kind):
    """A replica a process, gradients summed over all (torch DistributedDataParallel)."""

    kind: Literal["ddp"] = "ddp"
    bucket_mb: PositiveFloat = Field(25.0, description="Size of a gradient bucket in MiB (torch's default).")
    gradient_as_bucket_view: bool = Field(True, description="Gradients are views of the buckets: one copy less.")
    static_graph: bool = Field(
        False, description="Promise that every update uses the same parameters in the same order."
    )
    broadcast_buffers: bool = Field(
        True, description="Rank 0's buffers (BatchNorm's running statistics) go to all after each update's passes."
    )
    sync_batch_norm: bool = Field(False, description="BatchNorm over all ranks' samples; needs GPUs.")
    find_unused: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Parameters without gradient: auto completes the reduction and names them when it happens; always "
        "lets torch search each backward; never makes them an error.",
    )


Parallel = Annotated[AutoParallel | SingleParallel | DdpParallel, Field(discriminator="kind")]
