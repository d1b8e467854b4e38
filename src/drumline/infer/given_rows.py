"""A prediction run over rows that a program has in hand, with a model that it may have in hand too."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from drumline.config.infer_changes import refuse_other
from drumline.config.infer_file import dump_inference_config, load_inference_config
from drumline.config.inference import InferenceConfig
from drumline.errors import DataError, Interrupted
from drumline.infer.final import check_output, is_complete
from drumline.infer.locks import Locks
from drumline.infer.records import Predictor, Row
from drumline.infer.rows import ROWS_LOCK, are_same_rows, lock_file, make_folders, rows_of, write_rows
from drumline.infer.same_threads import SameThreads
from drumline.infer.stop_requests import ASKED, StopRequest
from drumline.infer.work import WorkSettings, work
from drumline.predictions import PredictionDir
from drumline.rundir import write_atomic

Make = Callable[[], tuple[Predictor, torch.device]]
"""Gives the predictor and its device; called once it is known that there is something to do."""

Given = Iterable[Mapping[str, Any] | str]

AnsweredRow = dict[str, Any]
"""A row's own columns, those of its answer, and `error`."""

GIVEN = "/rows-in-memory"
"""What stands for the files in the settings of such a run."""

FOLDER = "drumline-predict-"
"""Beginning of the name of a run's directory that is removed at once."""


def answer_here(rows: Given, config: InferenceConfig, make: Make, columns: tuple[str, ...] | None) -> list[AnsweredRow]:
    """The rows with what the model says to each, in their order; nothing is left on the disk.

    columns: as WorkSettings has them. Raises as `work` does.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        output = config.output.model_copy(update={"file": Path(folder) / "rows.jsonl"})
        own = config.model_copy(update={"output": output, "run_dir": None})
        answer_into_file(rows, own, make, columns)
        with own.output.file.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def answer_into_file(rows: Given, config: InferenceConfig, make: Make, columns: tuple[str, ...] | None) -> None:
    """Have the output file there, with whichever processes do the same at the same time or did before.

    Raises DataError where the rows are not those that the run began with, and ConfigError for other settings.
    """
    check_output(config.output.file)
    directory = PredictionDir(config.directory)
    make_folders(directory)
    asked = StopRequest(directory)
    freeze(directory, rows_of(rows), config, asked)
    if is_complete(directory, config.output.file):
        return
    predictor, device = make()
    with same_threads(device):
        used = SameThreads(predictor) if device.type == "cpu" else predictor
        work(directory, used, WorkSettings(config, device, columns), stop=asked)


def freeze(
    directory: PredictionDir, rows: Iterator[Row], config: InferenceConfig, stop: Callable[[], bool] = lambda: False
) -> None:
    """Keep rows and settings in the directory, or find that they are those that are kept there already.

    Raises Interrupted where another is at it and `stop` comes before its end.
    """
    make_folders(directory)
    directory.run.logs.mkdir(mode=0o700, exist_ok=True)
    locks = Locks(lock_file(directory))
    try:
        with locks.held(ROWS_LOCK, stop) as held:
            if not held:
                raise Interrupted(ASKED)
            if not directory.rows_facts.is_file():
                write_atomic(directory.run.config, dump_inference_config(config))
                write_rows(directory, rows, {}, config.rows.id)
                return
    finally:
        locks.close()
    refuse_other(load_inference_config(directory.run.config, {}), config, str(directory.path))
    if not are_same_rows(directory, rows):
        raise DataError(
            f"{directory.path} holds a run over other rows",
            "give the rows that it began with, or another `out` (or remove that directory)",
        )


@contextmanager
def same_threads(device: torch.device) -> Iterator[None]:
    """Put torch's number of threads back, on which all workers on CPUs agree."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if device.type == "cpu" and torch.get_num_threads() != before:
            torch.set_num_threads(before)
