"""Turns what `drumline jobs submit` was given into the request that a service takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drumline.errors import ConfigError, DataError


def request_of(
    recipe: str | None, model: str | None, data: Sequence[str], settings: Sequence[str], job: Sequence[str]
) -> dict[str, Any]:
    """The body of POST /jobs. settings, job: as --set and --job give them.

    Raises ConfigError for what cannot be meant, naming the option, and DataError for rows that cannot be sent.
    """
    from drumline.config.load import load_config, read_overrides

    work: dict[str, Any]
    if (recipe is None) == (model is None):
        what = "neither a recipe nor --model" if recipe is None else "a recipe and --model at the same time"
        raise ConfigError(what, "give one: drumline jobs submit RECIPE, or drumline jobs submit --model M --data D")
    if recipe is not None:
        if data:
            raise ConfigError("--data goes with --model", "set a recipe's data with --set data.train=[...]")
        config = load_config(recipe, settings)
        work = {"kind": "train", "config": config.model_dump(mode="json", exclude_unset=True)}
    else:
        if not data:
            raise ConfigError("--model without --data", "say what it is to learn from: --data PATH, or --data @FILE")
        work = {"kind": "finetune", "model_name": model, **_rows(data), "settings": read_overrides(settings)}
    return {**work, **_job(job, may_predict=model is not None)}


def _job(overrides: Sequence[str], *, may_predict: bool) -> dict[str, Any]:
    """Fields of the request beside the work itself, checked here so that an error names its option.

    may_predict: whether `kind=infer` may stand there, by which --data is answered rather than learned from.
    """
    from drumline.config.load import apply_override, validated
    from drumline.config.problem import Place
    from drumline.config.source import Layer
    from drumline.jobs.requests import JobRequest

    layer = Layer({}, {(): Place("the request")})
    for override in overrides:
        apply_override(layer, override, option="--job", example="resources.devices=2")
    for name in ("kind", "config", "model_name", "texts", "path", "settings"):
        if name in layer.value and not (may_predict and name == "kind" and layer.value[name] == "infer"):
            raise ConfigError(f"--job {name} says what --model, --data and --set do", "use those")
    return validated(layer, JobRequest).model_dump(mode="json", exclude_unset=True)


def _rows(data: Sequence[str]) -> dict[str, Any]:
    """Paths, or the rows of local files that are named with @."""
    sent = [path for path in data if path.startswith("@")]
    if not sent:
        return {"path": data[0] if len(data) == 1 else list(data)}
    if len(sent) < len(data):
        raise ConfigError("--data with and without @", "send all of the rows, or name only paths")
    return {"texts": [row for path in sent for row in _read(Path(path[1:]).expanduser())]}


def _read(path: Path) -> list[Any]:
    """Rows of a file: one a line, as JSON in .jsonl and as they stand in any other."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}", "give a file of UTF-8 text, a row a line") from None
    if path.suffix != ".jsonl":
        return [line.rstrip("\r") for line in lines]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, row {number}: this is not JSON: {error}", "write one JSON value a line") from None
    return rows
