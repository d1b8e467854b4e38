"""What a run is: the YAML files, and how they become drumline's RunConfig."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from drumline import RunConfig
from drumline.config.load import config_from_mapping, read_overrides

FOLDER = Path(__file__).parent / "config" / "model"
CONFIG = FOLDER / "ad_dr_compressed.yaml"
"""The full file, which all others are laid over."""


class Settings(BaseModel):
    """One key a line of the YAML files. An unknown key, or a value that cannot be meant, is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mixed_precision: Literal["no", "fp16", "bf16"]
    gradient_accumulation_steps: PositiveInt
    train_batch_size: PositiveInt
    """Contexts a GPU and micro-step; an update has this times accumulation times processes."""
    test_batch_size: PositiveInt
    """Contexts a forward pass on held-out histories."""
    num_workers: NonNegativeInt
    """Loader processes of each process."""
    tf_n_embd: PositiveInt
    tf_n_layer: PositiveInt
    tf_n_head: PositiveInt
    n_transit: PositiveInt
    """Transitions in a context: 20 an episode."""
    steps: PositiveInt
    lr: PositiveFloat
    warmup_steps: NonNegativeInt
    seed: NonNegativeInt
    goals_held_out: PositiveInt
    """Of the 81: in no history that is trained on."""
    histories_per_goal: PositiveInt
    episodes_per_history: PositiveInt
    checkpoint_every: PositiveInt
    """Updates between two checkpoints, each followed by an evaluation on held-out histories."""
    log_every: PositiveInt
    deterministic: bool
    run_dir: Path | None
    """Where the run is kept; where it exists, training goes on in it. None: a new folder under runs/."""

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _without_quotes(cls, value: Any) -> Any:
        """YAML reads a bare `no` as false."""
        return "no" if value is False else value


def read_settings(files: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> Settings:
    """The full file, then `files` over it in their order, then `key=value` overrides.

    A file that is not where it is said, is looked for among the presets, with or without its .yaml.
    Raises FileNotFoundError, pydantic's ValidationError and drumline's ConfigError.
    """
    values: dict[str, Any] = {}
    for file in (CONFIG, *files):
        values |= yaml.safe_load(_found(Path(file)).read_text(encoding="utf-8")) or {}
    return Settings.model_validate(values | read_overrides(overrides))


def _found(file: Path) -> Path:
    return file if file.is_file() else FOLDER / file.with_suffix(".yaml").name


def run_config(settings: Settings, *, has_gpu: bool) -> RunConfig:
    """Drumline's config of these settings. Without a GPU fp16 becomes fp32, which drumline refuses there."""
    precision = {"no": "fp32", "fp16": "fp16", "bf16": "bf16"}[settings.mixed_precision]
    mapping = {
        "seed": settings.seed,
        "run_dir": settings.run_dir,
        "train": {
            "batch_size_per_gpu": settings.train_batch_size,
            "gradient_accumulation_steps": settings.gradient_accumulation_steps,
            "max_steps": settings.steps,
            "lr": settings.lr,
            "optimizer": {"betas": [0.9, 0.99], "weight_decay": 0.01},
            "schedule": {"name": "linear", "warmup_steps": settings.warmup_steps},
            "precision": precision if has_gpu or precision != "fp16" else "fp32",
            "deterministic": settings.deterministic,
            "compile": "whole" if has_gpu else "none",  # which on a CPU takes longer than the small form's run
        },
        "loader": {"num_workers": settings.num_workers},
        "evaluate": {"every": settings.checkpoint_every, "batch": settings.test_batch_size},
        "checkpoint": {"every": settings.checkpoint_every},
        "track": {"every": settings.log_every, "tensorboard": True},
    }
    return config_from_mapping(mapping, "the YAML files of examples/darkroom")
