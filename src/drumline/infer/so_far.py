"""What `drumline infer --so-far` starts: writes the rows that are answered by now into a file beside the run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from drumline.config.infer_file import load_inference_config
from drumline.data.record_text import BadRow, Record
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.predictions import PredictionDir, ProgressReader
from drumline.rundir import read_json, sync_directory

AT_ONCE = 1000
"""Rows that are in memory together."""


def is_finished(directory: PredictionDir) -> bool:
    """Whether the run's output is written: of its rows nothing else is left."""
    return directory.summary.is_file() and not directory.rows.is_file()


def write_whole(directory: PredictionDir, file: Path) -> int:
    """Write the output of a finished run into another file, in the form that its name says; returns how many rows.

    Raises ConfigError where `file` exists, DataError where the output is not there any more.
    """
    from drumline.data.record_files import is_table, read_rows
    from drumline.data.record_table import find_cell_types
    from drumline.infer.forms import check_ending, form_of

    output = load_inference_config(directory.run.config, {}).output.file
    check_ending(file)
    if file.exists():
        raise ConfigError(f"{file} exists already", "give a file that does not exist yet")
    if not output.is_file():
        raise DataError(
            f"the run is finished, and its output {output} is not there any more",
            f"remove {directory.path} to answer all rows again",
        )
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            if output.suffix.lower() == file.suffix.lower():
                with output.open("rb") as source:
                    shutil.copyfileobj(source, stream)
            else:
                types = find_cell_types([output]) if is_table(output) else {}
                columns = dict.fromkeys(name for _, row in read_rows(output, types) for name in _of(row))
                form = form_of(file, stream, list(columns))
                for write in (form.look, form.write) if form.looks_first else (form.write,):
                    rows = (_of(row) for _, row in read_rows(output, types))
                    while some := list(islice(rows, AT_ONCE)):
                        write(some)
                form.close()
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(file.parent)
    return int(read_json(directory.summary)["num_rows"])


def _of(row: Record | BadRow) -> Record:
    if isinstance(row, BadRow):
        raise DataError(f"the run's output cannot be read: {row.problem}", "remove it, and answer all rows again")
    return row


def write_so_far(directory: PredictionDir, file: Path) -> int:
    """Write what is answered, in order; returns about how many rows that are. Raises ConfigError where `file` exists.

    Workers may go on meanwhile: what they finish then may be in it or not.
    """
    from drumline.infer.final import write_final

    if file.exists():
        raise ConfigError(f"{file} exists already", "give a file that does not exist yet")
    config = load_inference_config(directory.run.config, {})
    if not directory.rows_facts.is_file():
        raise ConfigError("the rows are not read yet", "try again in a moment")
    # Without agreement nothing is answered, and what is wrong with rows has no other columns.
    facts = read_json(directory.facts) if directory.facts.is_file() else {}
    write_final(directory, config, tuple(facts.get("columns", ())), file)
    return ProgressReader(directory.path).look().rows_done


def main(arguments: list[str]) -> None:
    """Print the outcome, as JSON, as the last line."""
    answer: dict[str, Any]
    try:
        directory, file = PredictionDir(Path(arguments[0])), Path(arguments[1])
        whole = is_finished(directory)
        answer = {"rows": (write_whole if whole else write_so_far)(directory, file), "whole": whole}
    except DrumlineError as error:
        answer = {"problem": error.problem, "fix": error.fix, "code": error.code}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
