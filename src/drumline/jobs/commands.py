"""The commands that do a job's work, from its record and what lies in its folder."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.config.load import read_overrides
from drumline.errors import ConfigError
from drumline.jobs.finetuning_commands import COMMAND, finetune_command
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.intake_predictions import prediction_paths
from drumline.jobs.intake_settings import paths_in
from drumline.jobs.keeper_files import Command, exported_of, rows_of, run_of
from drumline.jobs.prediction_commands import infer_command
from drumline.jobs.records import Job, Work
from drumline.rundir import write_json

SLOT = "cpu:"
"""Beginning of the name of a device that is a process on a machine without GPU."""


def commands_of(job: Job, folder: Path, cache: Path, memory_fraction: float = 1.0) -> list[Command]:
    """What an attempt runs: the training, from where it was left, then the export of its model; or the prediction.

    Writes a recipe, or a prediction's settings, into the folder where the work is one. cache: for data prepared of
    files, shared by all jobs; that of texts that came with a request lies in the job's folder, and is removed with
    them. memory_fraction: see ServiceConfig. Raises OSError, and ConfigError for settings that nobody knows and for
    paths that are links by now.
    """
    run = run_of(folder)
    work = job.work
    _check_unmoved(work)
    if work.kind == "infer":
        said = _devices(job.devices) | _memory(work.settings, memory_fraction)
        return [Command("infer", infer_command(job, folder, said))]
    asked = [] if work.kind == "train" else as_overrides(work.settings)
    own = as_overrides(
        {"run_dir": str(run.path), "checkpoint.resume": True}
        | _devices(job.devices)
        | ({} if work.kind == "train" else {"data.cache_dir": str(cache if work.data else folder / "cache")})
        | _memory(work.settings if work.kind == "train" else read_overrides(asked), memory_fraction)
    )
    if run.config.is_file():  # with its settings as they were chosen
        words = _train(run.config, own)
    elif work.kind == "train":
        recipe = folder / "recipe.yaml"
        write_json(recipe, dict(work.settings))
        recipe.chmod(0o600)
        words = _train(recipe, own)
    else:
        spread = as_overrides(parallel_settings(work.parallel))
        data = [Path(path) for path in work.data] or [rows_of(folder)]
        words = finetune_command(str(work.model), data, [*spread, *asked, *own])
    commands = [Command("train", words)]
    if work.export:
        out = exported_of(folder)
        commands.append(Command("export", (*COMMAND, "export", str(run.path), str(out)), str(out)))
    return commands


def _check_unmoved(work: Work) -> None:
    """Raise ConfigError where a path, which had no links in it when it was looked up, leads elsewhere by now."""
    model = [work.model] if work.model is not None and work.model.startswith("/") else []
    named = prediction_paths(work.settings) if work.kind == "infer" else paths_in(work.settings)
    for text in (*work.data, *model, *named):
        path = Path(text)
        while glob.has_magic(str(path)) and not path.exists():
            path = path.parent
        if os.path.realpath(path) != str(path):
            raise ConfigError(f"{text} leads elsewhere than when it was asked for", "send the request again")


def parallel_settings(parallel: str) -> dict[str, Any]:
    """The settings by which a fine-tuning is spread as its work says; auto is one process a device, as distributed."""
    return {"parallel": {"kind": "data_parallel"}} if parallel == "data_parallel" else {}


def _train(recipe: Path, overrides: list[str]) -> tuple[str, ...]:
    return (*COMMAND, "train", str(recipe), *(part for text in overrides for part in ("--set", text)))


def _devices(devices: tuple[str, ...]) -> dict[str, Any]:
    """The settings by which a run takes these devices and no others; what it learns does not depend on them."""
    if all(device.startswith(SLOT) for device in devices):
        return {"hardware.gpus": None, "hardware.count": None, "hardware.num_processes": len(devices)}
    return {"hardware.gpus": list(devices), "hardware.count": None, "hardware.num_processes": None}


def _memory(settings: Mapping[str, Any], most: float) -> dict[str, float]:
    """The share of memory that the service allows, where the job has not asked for less."""
    hardware = settings.get("hardware")
    asked = hardware.get("memory_fraction") if isinstance(hardware, Mapping) else None
    own = float(asked) if isinstance(asked, int | float) else 1.0
    return {"hardware.memory_fraction": most} if most < own else {}
