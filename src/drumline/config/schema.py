"""The one schema of a run, for YAML, --set, Python and REST. Every setting exists once, here or in a section's file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from drumline.config.data import Data, LoaderSettings
from drumline.config.model import DecoderModel, Model
from drumline.config.parallel import AutoParallel, Parallel
from drumline.config.section import Fraction, Section
from drumline.config.task import LanguageModellingTask, TaskConfig
from drumline.config.train import TrainConfig


class EarlyStopping(Section):
    """Stop when an evaluation metric no longer gets better."""

    metric: str = Field("loss", description="Name of an evaluation metric.")
    mode: Literal["min", "max"] = Field("min", description="Which way is better.")
    patience: PositiveInt = Field(3, description="Evaluations without a better value before the run stops.")
    min_delta: NonNegativeFloat = Field(0.0, description="Smallest change that counts as better.")


class EvaluateConfig(Section):
    """When and how the held-out data is evaluated."""

    every: PositiveInt | Literal["epoch", "end"] = Field(
        "epoch", description="Updates between evaluations, or at each epoch's end, or only at the end."
    )
    at_start: bool = Field(False, description="Also evaluate before the first update.")
    batch: PositiveInt | None = Field(
        None, description="Samples a forward pass and shard; none: the training micro-batch."
    )
    early_stopping: EarlyStopping | None = Field(None, description="None: run to the end.")


class CheckpointConfig(Section):
    """When state is saved."""

    every: PositiveInt | None = Field(None, description="Updates between saves; none: only at the end.")
    at_end: bool = Field(True, description="Save when the run ends.")


class TrackConfig(Section):
    """Where metrics go. metrics.jsonl is always written."""

    every: PositiveInt = Field(10, description="Updates between two log lines.")
    console: bool = Field(True, description="Show progress on rank 0's terminal.")
    tensorboard: bool = Field(
        False, description="Also write TensorBoard files, into tensorboard/ of the run directory."
    )
    gradient_noise: bool = Field(
        False,
        description="Also log the gradient noise scale (McCandlish et al. 2018); needs two micro-batches an update.",
    )


class HardwareConfig(Section):
    """Which devices, and how much of them."""

    device: Literal["auto", "cuda", "cpu"] = Field("auto", description="auto: every visible GPU, else the CPU.")
    gpus: list[str] | None = Field(
        None, description="GPU UUIDs or indexes as nvidia-smi lists them; none: all that are visible."
    )
    num_processes: PositiveInt | None = Field(
        None, description="Workers on a machine without GPU (none: 1); with GPUs there is one a GPU, see gpus."
    )
    memory_fraction: Fraction = Field(1.0, description="Share of each GPU's memory that its process may allocate.")
    expandable_segments: bool = Field(
        True,
        description="Let the allocator grow its segments, so that memory fragments less; an environment that says "
        "otherwise is kept.",
    )
    empty_cache: Literal["never", "epoch"] = Field(
        "never",
        description="Whether the allocator gives back what it holds unused at each epoch's end, for others on the same "
        "GPU; it has to ask for all of it again.",
    )


class RunConfig(Section):
    """A run: what, on what data, how long, on which devices."""

    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run; none: recipe or script, date and time.",
    )
    run_dir: Path | None = Field(None, description="Where the run is kept; none: runs/<name>.")
    seed: NonNegativeInt = Field(0, description="Of weights, order and random streams.")
    model: Model = DecoderModel()
    data: Data | None = Field(None, description="Needed by the command; a library user hands in data sets.")
    loader: LoaderSettings = LoaderSettings()
    task: TaskConfig = LanguageModellingTask()
    train: TrainConfig = TrainConfig()
    parallel: Parallel = AutoParallel()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    track: TrackConfig = TrackConfig()
    hardware: HardwareConfig = HardwareConfig()
