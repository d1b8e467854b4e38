"""From a model and data to a whole run: looked at in a child process, then chosen by config/finetuning.py."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.config.finetuning import DataSeen, Machine, ModelSeen, choose
from drumline.config.finetuning_task import ColumnSeen, TaskFound
from drumline.config.load import config_from_mapping, read_overrides
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError, DataError
from drumline.hardware.inventory import detect, named_gpus
from drumline.hardware.records import Hardware
from drumline.hardware.torch_child import ask_child

SOURCE = "drumline finetune"
"""What errors call settings that nobody wrote."""
LIMIT_S = 1800.0
"""A data set from the hub may have to be fetched."""


def finetune_config(
    model: str,
    data: Sequence[str],
    *,
    eval: Sequence[str] | None = None,
    task: str | None = None,
    overrides: Sequence[str] = (),
) -> tuple[RunConfig, dict[str, str]]:
    """The config of a run that fine-tunes this model on this data, and for each dotted name why it is so.

    model, data, eval: paths or names on the hub, as `drumline finetune` takes them. task: a task.kind; None: told from
    the rows. overrides: as --set takes them; they count before all else. Raises ConfigError and DataError.
    """
    said = read_overrides(overrides)
    asked = task or _text(said, "task", "kind")
    columns = said.get("data", {}).get("columns") if isinstance(said.get("data"), Mapping) else None
    ask = {
        "model": {**_model_settings(said), "path": model},
        "data": list(data),
        "eval": list(eval or ()),
        "task": asked,
        "columns": columns if isinstance(columns, dict) else {},
    }
    seen, rows, found, held_out = _looked(ask)
    machine = machine_of(detect(), said)
    try:
        choice = choose(seen, rows, found, machine, said, held_out)
    except (TypeError, ValueError):
        config_from_mapping({}, SOURCE, overrides)  # a setting that cannot be meant: says which, and how it is meant
        raise
    return config_from_mapping(choice.values, SOURCE, overrides), choice.reasons


def machine_of(hardware: Hardware, said: Mapping[str, Any]) -> Machine:
    """Pure: the devices that a run with these settings would get."""
    asked = said.get("hardware")
    asked = asked if isinstance(asked, Mapping) else {}
    names = asked.get("gpus")
    chosen = [str(name) for name in names] if isinstance(names, list) else None
    count = asked.get("count")
    excluded = asked.get("exclude")
    without = [str(name) for name in excluded] if isinstance(excluded, list) else []
    gpus = named_gpus(hardware, chosen, without, count if isinstance(count, int) and chosen is None else None)
    if not gpus or asked.get("device") == "cpu":
        number = asked.get("num_processes")
        return Machine(number if isinstance(number, int) else 1, hardware.host.memory_bytes, False)
    one = _text(said, "parallel", "kind") == "single"
    sizes = [gpu.memory_bytes for gpu in gpus]
    known = [size for size in sizes if size is not None]
    return Machine(1 if one else len(gpus), min(known) if len(known) == len(sizes) else None, True)


def _looked(ask: Mapping[str, Any]) -> tuple[ModelSeen, DataSeen, TaskFound, tuple[str, ...]]:
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    answer = ask_child(["-P", "-m", "drumline.build.glance", json.dumps(ask)], LIMIT_S, environ)
    if "error" in answer:
        raise DataError(
            f"model and data could not be looked at: {answer['error']}",
            "see whether the installation is sound: drumline doctor",
        )
    if "problem" in answer:
        kind = ConfigError if answer["code"] == ConfigError.code else DataError
        raise kind(answer["problem"], answer["fix"])
    data = answer["data"]
    columns = {
        name: ColumnSeen(tuple(column["types"]), column["num_distinct"]) for name, column in data["columns"].items()
    }
    found = answer["found"]
    return (
        ModelSeen(**answer["model"]),
        DataSeen(**{**data, "columns": columns, "source": tuple(data["source"])}),
        TaskFound(**{**found, "texts": tuple(found["texts"])}),
        tuple(answer["held_out"]),
    )


def _model_settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """What of the model section decides which files are looked at."""
    section = said.get("model")
    names = ("revision", "cache_dir", "token_variable", "trust_remote_code", "random_weights")
    return {name: section[name] for name in names if name in section} if isinstance(section, Mapping) else {}


def _text(values: Mapping[str, Any], section: str, name: str) -> str | None:
    found = values.get(section)
    value = found.get(name) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else None
