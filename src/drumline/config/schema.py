"""The one schema of a run, for YAML, --set, Python and REST. Every setting exists once, here or in a section's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from drumline.config.data import Data, LoaderSettings
from drumline.config.model import DecoderModel, Model
from drumline.config.monitor import MonitorConfig
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
    """When state is saved, in which form, what is kept, and what a run begins with."""

    every: PositiveInt | Literal["epoch"] | None = Field(
        None, description="Updates between saves; epoch: after each epoch; none: see every_s and at_end."
    )
    every_s: PositiveFloat | None = Field(None, description="Seconds between saves, besides `every`.")
    at_end: bool = Field(True, description="Save when the run ends.")
    asynchronous: bool = Field(
        True, description="Training goes on while a save is written; it waits for the copy to the host only."
    )
    format: Literal["auto", "whole", "sharded"] = Field(
        "auto",
        description="One file with all tensors, or each rank's parts (torch.distributed.checkpoint). auto: sharded "
        "under fsdp. Any form loads under any kind and number of processes.",
    )
    keep: PositiveInt | None = Field(3, description="Newest checkpoints that are kept; none: all.")
    keep_best: NonNegativeInt = Field(0, description="Checkpoints that are kept besides, by `metric`.")
    metric: str = Field("loss", description="Evaluation metric that keep_best goes by.")
    mode: Literal["min", "max"] = Field("min", description="Which way `metric` is better.")
    resume: bool = Field(
        True,
        description="Go on from the newest valid checkpoint where the run directory exists; false: refuse an existing "
        "one.",
    )
    initial: Path | None = Field(
        None,
        description="Weights that a new run begins with: a checkpoint of ours or anybody's, a .pt, .pth, .ckpt or "
        ".safetensors file, or a Hugging Face, accelerate or Lightning folder.",
    )


class TrackConfig(Section):
    """Where metrics go. metrics.jsonl is always written."""

    every: PositiveInt | Literal["epoch"] = Field(
        10, description="Updates between two log lines; epoch: one an epoch, with its means."
    )
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
    count: PositiveInt | None = Field(
        None, description="How many of the usable GPUs, those that are connected best first; none: all of them."
    )
    exclude: list[str] = Field(default=[], description="GPUs to leave alone, named as in gpus.")
    min_free_memory: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Share of its memory that a GPU must have free to be taken."
    )
    max_utilization: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Share of the last second in which a GPU that is taken may have been at work."
    )
    sick: Literal["leave_out", "use"] = Field(
        "leave_out", description="GPUs whose health says fail; see drumline gpus for the reasons."
    )
    taken: Literal["leave_out", "use"] = Field(
        "leave_out", description="GPUs on which somebody's process computes, or which another launch has claimed."
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


class FaultsConfig(Section):
    """What is done when something goes wrong outside of the training code, and how a run is stopped."""

    max_restarts: NonNegativeInt | None = Field(
        None,
        description="Restarts of all workers, each from the newest valid checkpoint; none: 3 for recipes, which "
        "resume, 0 for scripts and functions.",
    )
    restart_on: Literal["faults", "any"] = Field(
        "faults",
        description="faults: killed processes, lost GPUs, failed communication and hangs; any: every failure but a bad "
        "request.",
    )
    lost_gpu: Literal["leave_out", "wait"] = Field(
        "leave_out", description="Go on without a GPU that is lost, with the same global batch, or wait for it."
    )
    sick_gpu: Literal["at_restart", "at_once", "ignore"] = Field(
        "at_restart",
        description="A GPU whose health turns to fail during the run is left out when the workers are next started "
        "again, or the run is saved and started again for it (under another launcher: ends with status 3).",
    )
    hang_timeout_s: PositiveFloat = Field(
        600.0, description="Longest time without progress before the run ends with a report; half after an update."
    )
    stop_signals: list[Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"]] = Field(
        default=["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"],
        description="Signals on which all ranks stop after one update, save, and end as resumable.",
    )
    stop_grace_s: PositiveFloat = Field(
        600.0, description="How long ranks may take to stop and save before they are killed; a second signal: at once."
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
    faults: FaultsConfig = FaultsConfig()
    monitor: MonitorConfig = MonitorConfig()
