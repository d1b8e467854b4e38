"""The final file: every row in the order of the input, with its answer or its error, made once all are there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from drumline.config.inference import InferenceConfig
from drumline.errors import DataError
from drumline.infer.answers import AnswersIndex
from drumline.infer.batch_states import BatchStates
from drumline.infer.forms import check_ending, form_of
from drumline.infer.frozen_rows import FrozenRows
from drumline.infer.ledger_folder import FINAL_LOCK, is_there, lock_file
from drumline.infer.locks import Locks
from drumline.infer.planned_windows import PlannedWindows
from drumline.infer.planning import MeasuredWindow
from drumline.infer.records import ERROR, Answer
from drumline.infer.summary import Summary
from drumline.predictions import PredictionDir
from drumline.rundir import read_json, sync_directory, write_json

KINDS = {
    "embedding": "vector",
    "predictions": "texts",
    "new_tokens": "integer",
    "log_likelihood": "number",
    "perplexity": "number",
    "num_tokens": "integer",
}
"""Of answers' columns that are no text, so that a file without answers has the types that others have. Labels are not
known then: probabilities are text, as of more labels than a table has columns."""


def write_final(
    directory: PredictionDir,
    config: InferenceConfig,
    columns: Sequence[str],
    so_far: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Write the output file and summary.json, unless another process has; whether all rows are in it.

    While another is at it, it is waited for, until `stop`.

    columns: those of an answer, without prefix; () where only the answers tell. `so_far`: write what is done by now
    to that file instead, at any time. Raises DataError where the output is somebody else's, OSError where there is no
    room; nothing is lost then, and it can be called again.
    """
    if so_far is not None:
        table = _Table(directory, config, columns)
        try:
            _write_table(table, so_far, None)
        finally:
            table.close()
        return table.is_whole
    locks = Locks(lock_file(directory))
    try:
        with locks.held(FINAL_LOCK, stop) as held:
            return held and _write_once(directory, config, columns)
    finally:
        locks.close()


def is_complete(directory: PredictionDir, output: Path) -> bool:
    """Whether the final file of this run is there. Raises DataError where such a file is there and not this run's."""
    if not (output.parent.is_dir() and is_there(output)):
        return False
    # The summary is written just before the file gets its name.
    if not directory.summary.is_file():
        raise DataError(
            f"{output} exists, and is not from the run in {directory.path}",
            "move it away, or name another output file",
        )
    return True


def check_output(output: Path) -> None:
    """Find out before a run whether its output could be written.

    Raises ConfigError for an ending without a form, DataError for a folder that cannot be written to.
    """
    check_ending(output)
    if output.is_dir():
        raise DataError(f"output.file: {output} is a folder", "name a file")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # Without a name: other workers of the run may be at this too, and one that is killed leaves nothing.
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise DataError(
            f"output.file: {output} cannot be written: {error.strerror}",
            "name a file in a folder that you may write to",
        ) from error


def _write_once(directory: PredictionDir, config: InferenceConfig, columns: Sequence[str]) -> bool:
    output = config.output.file
    if not is_complete(directory, output):
        table = _Table(directory, config, columns)
        try:
            if not table.is_whole:
                raise DataError(f"not all rows of {directory.path} have answers", "start the run again: it goes on")
            table.check_answers()
            _write_table(table, output, directory.summary)
        finally:
            table.close()
    # Only after the file has its name: till then they are what it is made from.
    for file in (directory.rows, directory.offsets):
        file.unlink(missing_ok=True)
    shutil.rmtree(directory.answers, ignore_errors=True)
    return True


def _write_table(table: _Table, path: Path, summary_file: Path | None) -> None:
    # One name, as only one process writes it at a time: what a killed one left is written over.
    temporary = path.with_name(f".{path.name}.tmp")
    summary = Summary(table.label)
    try:
        with temporary.open("wb") as file:
            form = form_of(path, file, table.find_columns(path), table.kinds)
            if form.looks_first:
                for rows in table.windows(None):
                    form.look(rows)
            for rows in table.windows(summary):
                form.write(rows)
            form.close()
            file.flush()
            os.fsync(file.fileno())
        if summary_file is not None:
            write_json(summary_file, summary.as_json())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


class _Table:
    """The rows of the output, one window in memory at a time."""

    def __init__(self, directory: PredictionDir, config: InferenceConfig, columns: Sequence[str]) -> None:
        self._input = tuple(read_json(directory.rows_facts)["columns"])
        self._num_rows = read_json(directory.rows_facts)["num_rows"]
        self._columns = tuple(columns)
        self._prefix = config.output.prefix
        self.label = config.rows.label
        self.kinds = {self._prefix + name: KINDS[name] for name in self._columns if name in KINDS}
        self._windows = PlannedWindows(directory)
        self._windows.look()
        # States before answers: what is done by the first look has its answers at the second.
        self._states = BatchStates(directory.state)
        if self._windows.num_batches:
            self._states.look(self._windows.num_batches)
        self._open = set(self._states.open_batches())
        self._answers = AnswersIndex(directory)
        self._rows = FrozenRows(directory)

    @property
    def is_whole(self) -> bool:
        """Whether every row is done."""
        return self._windows.next_row >= self._num_rows and not self._open

    def check_answers(self) -> None:
        """Open batches again whose answers are gone, as after a disk failed, and raise DataError."""
        lost = [batch for batch in range(self._windows.num_batches) if batch not in self._answers]
        for batch in lost:
            self._states.write(batch, 0)
        if lost:
            raise DataError(
                f"the answers of {len(lost):,} batches are gone from the ledger, though they were there",
                "start the run again: they are made anew, and no others",
            )

    def find_columns(self, path: Path) -> list[str]:
        """Names of all columns, in their order; the answers' by looking at them where they are not known."""
        found = dict.fromkeys(self._columns)
        if not found and path.suffix.lower() != ".jsonl":
            for number in range(len(self._windows)):
                for answer in self._of_window(self._windows.load(number)).values():
                    found.update(dict.fromkeys(name for name in answer if name != ERROR))
        return [*self._input, *(self._prefix + name for name in (*found, ERROR))]

    def windows(self, summary: Summary | None) -> Iterator[list[dict[str, Any]]]:
        """Yield the finished rows of one window after the other."""
        for number in range(len(self._windows)):
            window = self._windows.load(number)
            answers = self._of_window(window)
            done = sorted(answers)
            if summary:
                summary.add_lengths(window.lengths)
            rows = []
            for row in self._rows.read(done):
                answer = answers[row.number]
                error = answer.get(ERROR)
                if summary:
                    summary.add(row.values, answer, error)
                rows.append({**row.values, **self._added(answer), self._prefix + ERROR: error})
            yield rows

    def close(self) -> None:
        self._rows.close()

    def _added(self, answer: Answer) -> dict[str, Any]:
        named: dict[str, Any] = dict.fromkeys(self._columns)
        named.update((name, value) for name, value in answer.items() if name != ERROR)
        if self._columns and len(named) > len(self._columns):
            unknown = sorted(set(named) - set(self._columns))
            raise ValueError(f"an answer has columns that were not announced: {', '.join(unknown)}")
        return {self._prefix + name: value for name, value in named.items()}

    def _of_window(self, window: MeasuredWindow) -> dict[int, Answer]:
        """What is known of a window's rows, by their number."""
        found: dict[int, Answer] = {row: {ERROR: problem} for row, problem in window.problems.items()}
        for batch in window.batches:
            if batch.number not in self._open:
                found |= self._answers.read(batch.number)
        return found
