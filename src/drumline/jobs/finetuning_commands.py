"""The commands that a fine-tuning service starts, and what they say when they fail."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from drumline.errors import ConfigError, DataError, LaunchError
from drumline.hardware.inventory import detect
from drumline.jobs.finetuning_records import PreparedDataset, Training, last_error
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.sessions import run_to_end
from drumline.rundir import write_atomic

Rows = Iterable[str | Mapping[str, Any]]
Dataset = PreparedDataset | str | Path | Sequence[str | Path]
Parallel = Literal["auto", "data_parallel", "distributed"]

COMMAND = (sys.executable, "-P", "-m", "drumline")


def finetune_command(model_name: str, dataset: Dataset, overrides: Sequence[str]) -> tuple[str, ...]:
    """`drumline finetune` for this model and data."""
    if isinstance(dataset, PreparedDataset):
        paths = [str(dataset.path)]
    else:
        paths = [str(dataset)] if isinstance(dataset, str | Path) else [str(path) for path in dataset]
    data = (part for path in paths for part in ("--data", path))
    settings = (part for text in overrides for part in ("--set", text))
    return (*COMMAND, "finetune", "--model", model_name, *data, *settings)


def resume_command(training: Training) -> tuple[str, ...]:
    """What goes on with a training: with its settings where they were chosen already, else from the beginning."""
    config = training.run.config
    return (*COMMAND, "train", str(config)) if config.is_file() else training.command


def export_command(training: Training) -> tuple[str, ...]:
    """`drumline export` of what was trained."""
    return (*COMMAND, "export", str(training.run.path), str(training.exported))


async def dry_run(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a fine-tuning command would do: `config` and `reasons`. Raises ConfigError or LaunchError as it ends."""
    log = folder / f".{secrets.token_hex(8)}.log"
    try:
        status = await run_to_end([*command, "--dry-run", "--json"], log)
        if status != 0:
            problem, fix = last_error(log) or (f"the command ended with status {status}", "see drumline doctor")
            raise (ConfigError if status == 2 else LaunchError)(problem, fix)
        # What libraries say on the error stream stands around it.
        text = "\n" + log.read_text(encoding="utf-8", errors="replace")
        found: dict[str, Any] = json.JSONDecoder().raw_decode(text, text.index("\n{\n") + 1)[0]
        return found
    finally:
        log.unlink(missing_ok=True)


def write_rows(texts: Rows, folder: Path) -> tuple[Path, int]:
    """Write rows as JSON Lines into a file that is named by its content and that its owner alone may read.

    Raises DataError for no rows, and for one that is neither a text nor a mapping.
    """
    rows = [_as_row(number, row) for number, row in enumerate(texts)]
    if not rows:
        raise DataError("there are no texts", "give at least one")
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = folder / f"{hashlib.sha256(content).hexdigest()[:32]}.jsonl"
    if not path.exists():
        write_atomic(path, content)
        path.chmod(0o600)
    return path, len(rows)


def _as_row(number: int, row: object) -> Mapping[str, Any]:
    if isinstance(row, str):
        return {"text": row}
    if isinstance(row, Mapping):
        return dict(row)
    raise DataError(
        f"texts[{number}] is of type {type(row).__name__}",
        'give a text, or a row as {"prompt": ..., "completion": ...}',
    )


def spread_over(parallel: Parallel, world_size: int | None) -> list[str]:
    """How a training is spread over this machine's devices, as --set takes it."""
    settings: dict[str, Any] = {"parallel": {"kind": "data_parallel"}} if parallel == "data_parallel" else {}
    if world_size is not None:
        settings["hardware.count" if detect().gpus else "hardware.num_processes"] = world_size
    return as_overrides(settings)
