"""What a job's own address tells, part of which is read in the job's folder."""

from __future__ import annotations

from pydantic_core import to_json

from drumline.errors import Conflict
from drumline.jobs.board import Board
from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Job
from drumline.service.history import training_history
from drumline.service.job_logs import log_sources
from drumline.service.views import JobDetail, detail_values


def detail_of(board: Board, job: Job, base: str) -> JobDetail:
    """One job; where its files lie on another machine, what they would say is null, and `note` says so."""
    return JobDetail.model_validate_json(detail_json(board, job, base))


def detail_json(board: Board, job: Job, base: str) -> bytes:
    """The same as JSON: making a model of it first would take most of the time."""
    position = board.queue.places([job]).get(job.id)
    history = b"null"
    try:
        folder = board.files(job)
    except Conflict as error:
        values = detail_values(job, base, position=position, note=f"{error.problem}: {error.fix}")
    else:
        values = detail_values(job, base, position=position, log_sources=log_sources(folder))
        if job.has_ended and job.work.kind != "infer":
            history = training_history(run_of(folder).path)
    return b'%b,"training_history":%b}' % (to_json(values)[:-1], history)
