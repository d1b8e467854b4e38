"""What a job's own address tells, part of which is read in the job's folder."""

from __future__ import annotations

from typing import Any

from drumline.errors import Conflict
from drumline.jobs.board import Board
from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Job
from drumline.service.history import training_history
from drumline.service.job_logs import log_sources
from drumline.service.views import JobDetail, detail_values


def detail_of(board: Board, job: Job, base: str) -> JobDetail:
    """One job; where its files lie on another machine, what they would say is null, and `note` says so."""
    return JobDetail.model_validate(told_of(board, job, base))


def told_of(board: Board, job: Job, base: str) -> dict[str, Any]:
    """The same as plain values that JSON has: making a model of them would take most of the time."""
    position = board.queue.places([job]).get(job.id)
    try:
        folder = board.files(job)
    except Conflict as error:
        return detail_values(job, base, None, position=position, note=f"{error.problem}: {error.fix}")
    learns = job.work.kind != "infer"
    history = training_history(run_of(folder).path) if job.has_ended and learns else None
    return detail_values(job, base, history, position=position, log_sources=log_sources(folder))
