"""How a model is spread: one kind a class, each with its own fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

Compression = Literal["none", "bf16", "fp16", "power_sgd"]


class Kind(BaseModel):
    """What every kind has."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="auto: nccl between GPUs, gloo between CPU processes."
    )
    timeout_s: PositiveFloat = Field(900.0, description="Longest wait for the other ranks.")


class AutoParallel(Kind):
    """Single for one process; for several ddp where the training state fits each device, else fsdp."""

    kind: Literal["auto"] = "auto"


class SingleParallel(Kind):
    """One process, one device, no communication."""

    kind: Literal["single"] = "single"


class DataParallel(Kind):
    """A replica and a thread a GPU, all in one process, without a launcher; for notebooks and services."""

    kind: Literal["data_parallel"] = "data_parallel"
    replicas: PositiveInt | None = Field(
        None, description="Replicas on the CPU, which take turns (none: 1); with GPUs there is one a GPU."
    )
    bucket_mb: PositiveFloat = Field(64.0, description="Size of a gradient bucket in MiB.")
    broadcast_buffers: bool = Field(
        True,
        description="The first replica's buffers (BatchNorm's statistics) go to all after each update's passes.",
    )


class DdpParallel(Kind):
    """A replica a process, gradients summed over all."""

    kind: Literal["ddp"] = "ddp"
    bucket_mb: PositiveFloat | Literal["auto"] = Field(
        "auto",
        description="Size of a gradient bucket in MiB. auto: 25, as torch has it; 200 where compile: whole gives all "
        "gradients at its end, so that no reduction could begin sooner.",
    )
    compression: Compression = Field(
        "none",
        description="Gradients on the wire: as they are, rounded to half precision, or as factors of low rank "
        "(PowerSGD, Vogels et al. 2019). All but none change the numbers.",
    )
    power_sgd_rank: PositiveInt = Field(4, description="power_sgd only: rank of the factors.")
    power_sgd_start: NonNegativeInt = Field(
        1000,
        description="power_sgd only: updates before the compression begins (torch advises about a tenth of a run).",
    )
    cut_graphs: bool = Field(
        False,
        description="compile: whole only: cut the compiled graph where buckets end, so that they are reduced beside "
        "the rest of the backward pass; false: one graph, after which all is reduced (measured faster on two H200).",
    )
    balance: Literal["equal", "measured"] = Field(
        "equal", description="measured: a rank's share of each update follows its speed at start, for unlike GPUs."
    )
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


class FsdpParallel(Kind):
    """Parameters, gradients and optimizer state sharded over all ranks (torch's fully_shard, FSDP2)."""

    kind: Literal["fsdp"] = "fsdp"
    reshard_after_forward: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether a block gives its gathered parameters back before its backward pass: always saves memory, "
        "never saves a gather; auto: never where all parameters fit beside the rest.",
    )
    shard_size: PositiveInt | None = Field(
        None, description="Ranks that share one set of shards (hybrid sharding: replicated over the others); none: all."
    )
    offload: bool = Field(False, description="Shards and optimizer state stay in the host's memory between uses.")
    reduce_precision: Literal["fp32", "bf16"] = Field("fp32", description="Type in which gradients are reduced.")
    min_params: PositiveInt = Field(
        100_000, description="Smallest module, in parameters, that is sharded as a unit of its own."
    )


Parallel = Annotated[
    AutoParallel | SingleParallel | DataParallel | DdpParallel | FsdpParallel, Field(discriminator="kind")
]
