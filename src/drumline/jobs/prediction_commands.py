"""The command that does the work of a job that predicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from drumline.config.source import Dumper
from drumline.jobs.finetuning_commands import COMMAND
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.keeper_files import answers_of, rows_of, run_of
from drumline.jobs.records import Job
from drumline.rundir import write_atomic

SETTINGS = "prediction.yaml"
"""In a job's folder: what was asked for. A prompt is nobody's business who sees the machine's processes."""


def infer_command(job: Job, folder: Path, own: Mapping[str, Any]) -> tuple[str, ...]:
    """`drumline infer` in the job's folder, the same for each attempt but for its devices: it goes on by itself.

    own: settings that the service says, by dotted name. Raises OSError.
    """
    work = job.work
    settings = folder / SETTINGS
    write_atomic(settings, yaml.dump(dict(work.settings), Dumper=Dumper, sort_keys=False, allow_unicode=True))
    settings.chmod(0o600)
    # Rows of a request, which others wrote, name no files of this machine; jobs of old have no roots of their own.
    folders = work.settings.get("rows", {}).get("image_roots") or sorted({str(Path(each).parent) for each in work.data})
    own = {**own, "rows.image_roots": folders if work.data else []}
    files = work.data or (str(rows_of(folder)),)
    data = (word for path in files for word in ("--data", path))
    places = ("--model", str(work.model), *data, "--out", str(answers_of(folder, work.output)))
    sets = (word for text in as_overrides({"run_dir": str(run_of(folder).path), **own}) for word in ("--set", text))
    return (*COMMAND, "infer", "--config", str(settings), *places, *sets)
