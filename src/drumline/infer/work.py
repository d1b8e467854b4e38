"""One worker of a prediction run: it takes batches from the ledger until all rows of the run have answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from drumline.config.inference import InferenceConfig
from drumline.errors import Interrupted
from drumline.infer.feeding import Feeder
from drumline.infer.final import write_final
from drumline.infer.ledger import Ledger
from drumline.infer.planning_ahead import Plan
from drumline.infer.records import Predictor
from drumline.infer.rows import check_columns, prepare_rows
from drumline.infer.rows_in_form import RowsInForm
from drumline.infer.settling import TRIAL, Place, settle
from drumline.infer.stop_requests import ASKED, StopRequest
from drumline.infer.tries import Tries
from drumline.infer.worker_record import WorkerRecord, work_of, worker_name
from drumline.infer.writing_out import Answered, Writer
from drumline.predictions import PredictionDir
from drumline.rundir import read_json


@dataclass(frozen=True)
class WorkSettings:
    """What a worker goes by."""

    config: InferenceConfig
    device: torch.device
    """On which the predictor runs; of a split model the first one."""
    columns: tuple[str, ...] | None = None
    """Of an answer; None: as the predictor says. () where only the answers tell."""


def work(
    directory: PredictionDir, predictor: Predictor, settings: WorkSettings, *, stop: Callable[[], bool] = lambda: False
) -> None:
    """Answer rows until all of the run's have answers, with whoever else is at it, and see that the final file is made.

    The directory has config.yaml; the rows are frozen in it first where nobody has done so. `stop` is asked between two
    batches, as is a file requests/stop that is made meanwhile: what is held is then given back, and Interrupted raised.
    Raises WorkerLost where this process cannot go on and another one can, and DataError, ConfigError and OSError as the
    ledger does.
    """
    name = worker_name()
    asked = StopRequest(directory, stop)
    if not directory.rows_facts.is_file():
        prepare_rows(directory, settings.config.rows, asked)
        if asked():
            raise Interrupted(ASKED)
    columns = predictor.columns if settings.columns is None else settings.columns
    check_columns(read_json(directory.rows_facts)["columns"], columns, settings.config.output.prefix)
    ledger = Ledger(directory.path, name, asked)
    try:
        if not ledger.is_done:
            with _attention_of_any_width():
                _answer_all(directory, ledger, predictor, settings, (name, asked))
        if not ledger.is_done:
            raise Interrupted(ASKED)
    finally:
        ledger.close()
    if not write_final(directory, settings.config, columns, stop=asked):
        raise Interrupted(ASKED)


@contextmanager
def _attention_of_any_width() -> Iterator[None]:
    """Inside, torch's attention is not cuDNN's, which builds a plan for each shape that it meets first.

    Nearly every batch of a prediction has a width of its own: on an H200, 20,000 rows through MiniLM's shape took 5.9 s
    with it and 1.9 s without.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _answer_all(
    directory: PredictionDir,
    ledger: Ledger,
    predictor: Predictor,
    settings: WorkSettings,
    whose: tuple[str, StopRequest],
) -> None:
    name, asked = whose
    batching = settings.config.batching
    rows = RowsInForm(ledger, predictor)
    facts = settle(ledger, rows, predictor, Place(batching, settings.device, directory.ledger / TRIAL))
    record = WorkerRecord(directory.workers, name)
    tries = Tries(ledger, predictor, settings.config.max_deaths, record.beat)
    feeder = Feeder(ledger, rows, Plan(int(facts["tokens"]), batching.rows, batching.window), asked, record.beat)
    writer = Writer(ledger, record, feeder.look_again, feeder.fail)
    try:
        _run_all(ledger, tries, feeder, writer)
        writer.close()
    finally:
        feeder.close()
        writer.abandon()


def _run_all(ledger: Ledger, tries: Tries, feeder: Feeder, writer: Writer) -> None:
    took_s = None
    while (fed := feeder.next(took_s)) is not None:
        began = time.perf_counter()
        try:
            lease, answers = tries.run(fed.lease, fed.prepared)
            took_s = time.perf_counter() - began
            done = work_of([each.answer for each in answers], fed.prepared, took_s)
        except BaseException:
            ledger.give_back(fed.lease)
            raise
        writer.put(Answered(lease, answers, done))
