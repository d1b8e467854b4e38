"""The folder of a job that goes on with another one's prediction: its rows as they were frozen, and their answers."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import yaml

from drumline.config.inference import InferenceConfig
from drumline.config.load import validated
from drumline.config.source import Dumper, from_mapping
from drumline.jobs.keeper_files import answers_of, run_of
from drumline.jobs.records import OutputForm
from drumline.jobs.retry_folder import link_or_copy, moved
from drumline.predictions import PredictionDir
from drumline.rundir import read_json, sync_directory, write_atomic, write_json

LEFT_OUT = ("exit.json", "requests", "logs", "summary.json")
"""What is not told of the run that goes on: how it ended, what it was asked for, and by whom it was held."""

FROZEN = ("rows.jsonl", "offsets.bin")


def has_rows_to_go_on(folder: Path) -> bool:
    """Whether a job has left a run whose rows are frozen, and whose answers are not written out yet."""
    place = PredictionDir(run_of(folder).path)
    return place.rows_facts.is_file() and place.rows.is_file()


def bring_prediction(old: Path, new: Path) -> None:
    """Make a run directory in `new` that goes on where the one in `old` stood. All of it is there, or nothing.

    The rows are a hard link where the file system has them: nobody changes them. Raises OSError and ValueError.
    """
    source = PredictionDir(run_of(old).path)
    made = PredictionDir(new / f".run.{secrets.token_hex(4)}")
    made.path.mkdir(mode=0o700)
    try:
        made.run.logs.mkdir(mode=0o700)
        for entry in sorted(source.path.iterdir()):
            if entry.name in LEFT_OUT or entry.name.endswith(".tmp"):
                continue
            if entry.is_dir():
                shutil.copytree(entry, made.path / entry.name, ignore=shutil.ignore_patterns(*FROZEN, "*.tmp"))
            else:
                shutil.copy2(entry, made.path / entry.name)
        for frozen in (source.rows, source.offsets):
            link_or_copy(frozen, made.ledger / frozen.name)
        # Its sources are named by where they lie, and it must find those it knows; so is its output.
        for document in (made.rows_facts, made.facts):
            if document.is_file():
                write_json(document, moved(read_json(document), str(old), str(new)))
        _move_config(made, old, new)
        sync_directory(made.path)
        made.path.rename(run_of(new).path)
        sync_directory(new)
    except BaseException:
        shutil.rmtree(made.path, ignore_errors=True)
        raise


def forget_prediction(folder: Path, form: OutputForm) -> None:
    """Remove the rows of a prediction wherever its folder holds them, its answers too. Raises OSError."""
    place = PredictionDir(run_of(folder).path)
    for file in (answers_of(folder, form), place.rows, place.offsets):
        file.unlink(missing_ok=True)
    if place.answers.is_dir():
        shutil.rmtree(place.answers)
    # What was killed while it wrote has left rows too: half an output, half of what is frozen, half of a retry.
    output = answers_of(folder, form)
    for file in (output.with_name(f".{output.name}.tmp"), *place.ledger.glob(".*.tmp")):
        file.unlink(missing_ok=True)
    for draft in folder.glob(".run.*"):
        shutil.rmtree(draft)


def _move_config(made: PredictionDir, old: Path, new: Path) -> None:
    """Have config.yaml name the new folder wherever it named the old one."""
    path = made.run.config
    if not path.is_file():
        return
    values = moved(yaml.safe_load(path.read_text(encoding="utf-8")), str(old), str(new))
    config = validated(from_mapping(values, str(path)), InferenceConfig)
    written = config.model_dump(mode="json")
    write_atomic(path, yaml.dump(written, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120))
