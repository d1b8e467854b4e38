"""A run's config as an evaluation of its checkpoints needs it: the same task, data and model, and nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drumline.config.schema import CheckpointConfig, RunConfig, TrackConfig
from drumline.errors import ConfigError


def evaluation_config(config: RunConfig, files: Sequence[str] = (), batch: int | None = None) -> RunConfig:
    """The config for evaluating a run's model, on its own held-out rows or on those in `files`.

    batch: samples a forward pass where the config does not say. Raises ConfigError for files where the kind of data
    takes none, and where there is no held-out data at all.
    """
    train: dict[str, Any] = {"profile": None, "max_time_s": None}
    if config.train.compile == "auto":
        train["compile"] = "none"  # it is not worth a measurement
    if config.train.micro_batch == "auto" and config.train.batch_size_per_gpu is None:
        train["micro_batch"] = 1  # nothing is trained, so that no size need be looked for
    evaluate = {"batch": config.evaluate.batch or batch, "at_start": False}
    return config.model_copy(
        update={
            "name": None,
            "run_dir": None,
            "data": _data_of(config, files),
            "train": config.train.model_copy(update=train),
            "evaluate": config.evaluate.model_copy(update=evaluate),
            "checkpoint": CheckpointConfig(at_end=False),
            "track": TrackConfig(console=False),
            "monitor": config.monitor.model_copy(update={"record": False}),
        }
    )


def _data_of(config: RunConfig, files: Sequence[str]) -> Any:
    data: Any = config.data
    changes: dict[str, Any] = {}
    fields = () if data is None else type(data).model_fields
    if files:
        if "eval" not in fields:
            what = "the run has no data section" if data is None else f"data.kind {data.kind} has no held-out files"
            raise ConfigError(f"--data cannot be used: {what}", "leave --data out, or set other keys with --set")
        changes["eval"] = list(files)
        if "eval_fraction" in fields:
            changes["eval_fraction"] = 0.0
    elif data is not None and not any(
        getattr(data, name, None) for name in ("eval", "eval_split", "eval_fraction", "num_eval_rows")
    ):
        raise ConfigError("the run has no held-out data", "name files with --data")
    if "check" in fields:
        changes["check"] = False  # the run has looked through its rows
    return data if data is None else data.model_copy(update=changes)
