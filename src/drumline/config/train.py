"""Batch, length, optimizer, schedule, precision: everything about the updates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from drumline.config.compute import CheckpointingConfig, Compile, LinearConfig
from drumline.config.section import Fraction, Section

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]


class ParameterRule(Section):
    """What holds for the parameters whose names match."""

    pattern: str = Field(min_length=1, description="A name as in state_dict(), with * and ? as in file names.")
    lr_factor: PositiveFloat | None = Field(None, description="Factor on the learning rate.")
    weight_decay: NonNegativeFloat | None = Field(None, description="Instead of the optimizer's.")
    freeze: bool = Field(False, description="Leave them as they are.")


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) or SGD, fused where the device has it."""

    name: Literal["adamw", "sgd"] = Field("adamw", description="Which optimizer.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates of the two moments.")
    eps: PositiveFloat = Field(1e-8, description="AdamW's denominator term.")
    momentum: NonNegativeFloat = Field(0.0, description="SGD's momentum.")
    weight_decay: NonNegativeFloat = Field(0.1, description="Decoupled (AdamW) or L2 (SGD) decay.")
    state_precision: Literal["same", "bf16", "fp16", "int8"] = Field(
        "same",
        description="AdamW's moments: in the parameters' type, in half precision for half their memory, or in 8 bits "
        "by blocks (Dettmers et al. 2022, bitsandbytes).",
    )
    paged: bool = Field(
        False, description="Let moments move to the host's memory when the GPU's is short (bitsandbytes, with int8)."
    )
    decay_all: bool = Field(False, description="Also decay norms and biases (all that has fewer than two dimensions).")
    layer_decay: Fraction = Field(
        1.0, description="Factor on the rate from one layer to the one below it (Clark et al. 2020); 1: all alike."
    )
    rules: list[ParameterRule] = Field(
        default=[], description="Exceptions by parameter name; where several fit, the last one's values count."
    )


class ScheduleConfig(Section):
    """Learning rate over completed updates: warm-up from zero, then one of four shapes, or a scheduler of torch's."""

    name: Literal["constant", "linear", "cosine", "wsd", "torch"] = Field(
        "cosine",
        description="wsd: warm-up, stable, then linear decay over the last part; torch: the scheduler in `scheduler`.",
    )
    warmup_steps: NonNegativeInt = Field(0, description="Updates of linear warm-up.")
    final_fraction: Annotated[float, Field(ge=0, le=1)] = Field(0.1, description="Rate at the end, as a share of lr.")
    decay_fraction: Fraction = Field(0.2, description="wsd only: share of the updates that decay.")
    scheduler: str | None = Field(None, description="torch only: a class of torch.optim.lr_scheduler, as StepLR.")
    options: dict[str, bool | int | float | str | list[int] | list[float]] = Field(
        default={}, description="torch only: the scheduler's own arguments, but for the optimizer."
    )
    interval: Literal["update", "epoch", "evaluation"] = Field(
        "update", description="When torch's scheduler, or one that is handed in, moves on."
    )
    metric: str = Field("loss", description="What ReduceLROnPlateau looks at, with interval: evaluation.")


class AveragingConfig(Section):
    """A running average of the weights, which evaluation and prediction use and checkpoints hold besides them."""

    kind: Literal["ema", "swa"] = Field(
        "ema", description="Exponential (Polyak), or the plain mean of all (Izmailov et al. 2018)."
    )
    decay: Annotated[float, Field(gt=0, lt=1)] = Field(0.999, description="ema only: share that stays each time.")
    start: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Share of the run after which it begins.")
    every: PositiveInt = Field(1, description="Updates between two weights that are taken in.")


class ProfileConfig(Section):
    """A window of updates that torch's profiler watches, for a verdict on where their time went."""

    start: NonNegativeInt = Field(10, description="Completed updates before it; the first ones compile and warm up.")
    steps: PositiveInt = Field(5, description="Updates that are watched.")


class OutOfMemoryConfig(Section):
    """What happens when a device's memory does not suffice."""

    recover: bool = Field(True, description="Redo the update with smaller micro-batches; false: end the run.")
    target: Fraction = Field(0.9, description="Share of the device's memory that micro_batch: auto may fill.")
    grow_after: PositiveInt | None = Field(
        None, description="Updates after which a micro-batch that had to shrink is doubled again; none: never."
    )


class TrainConfig(Section):
    """Batch, length, optimizer, precision: everything about the updates."""

    global_batch: PositiveInt | None = Field(None, description="Samples an update, over everything.")
    micro_batch: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="Samples a forward pass and shard; auto: the shard's whole share, or on a GPU as many as fit.",
    )
    batch_size_per_gpu: PositiveInt | None = Field(
        None, description="Instead of global_batch, with gradient_accumulation_steps."
    )
    gradient_accumulation_steps: PositiveInt | None = Field(None, description="Goes with batch_size_per_gpu; none: 1.")
    epochs: PositiveInt | None = Field(
        None, description="Passes over the data; this or max_steps (both: whichever ends first)."
    )
    max_steps: PositiveInt | None = Field(None, description="Completed updates.")
    max_time_s: PositiveFloat | None = Field(
        None, description="Seconds after which the run stops, saves, and can be resumed; none: no limit."
    )
    lr: PositiveFloat = Field(3e-4, description="Peak learning rate.")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    precision: Precision = Field("auto", description="auto: bf16 from Ampere on, fp16 before it, fp32 on CPU.")
    max_norm: PositiveFloat | None = Field(1.0, description="Clip the global gradient norm to this; none: no clipping.")
    averaging: AveragingConfig | None = Field(None, description="None: the weights as they are.")
    compile: Compile = Field(
        "none",
        description="Compile model and loss with torch.compile, or each block of a model that repeats one: quicker to "
        "start, somewhat slower to run. auto: whether blocks are compiled is measured at start on a GPU.",
    )
    cuda_graphs: bool = Field(
        False, description="Replay compiled code as CUDA graphs, where shapes are static: less work for the host."
    )
    checkpointing: CheckpointingConfig = CheckpointingConfig()
    out_of_memory: OutOfMemoryConfig = OutOfMemoryConfig()
    linear: LinearConfig = LinearConfig()
    deterministic: bool = Field(
        False, description="Two runs give equal bits on the same devices; slower, and what cannot be so is an error."
    )
    non_finite: Literal["stop", "skip"] = Field(
        "stop", description="A NaN or infinite gradient ends the run, or skips the update."
    )
    max_skipped: PositiveInt = Field(
        10, description="Skipped updates in a row after which the run stops (non_finite: skip, and fp16)."
    )
    profile: ProfileConfig | None = Field(None, description="None: no profiler.")
    shuffle: bool = Field(True, description="Draw a new order each epoch from seed and epoch.")
