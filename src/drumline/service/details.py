"""What a job's own address tells, part of which is read in the job's folder."""

from __future__ import annotations

from drumline.errors import Conflict
from drumline.jobs.board import Board
from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Job
from drumline.service.history import training_history
from drumline.service.job_logs import log_sources
from drumline.service.views import JobDetail, job_detail


def detail_of(board: Board, job: Job, base: str) -> JobDetail:
    """One job; where its files lie on another machine, what they would say is null, and `note` says so."""
    position = board.queue.places([job]).get(job.id)
    try:
        folder = board.files(job)
    except Conflict as error:
        return job_detail(job, base, None, position=position, note=f"{error.problem}: {error.fix}")
    learns = job.work.kind != "infer"
    history = training_history(run_of(folder).path) if job.has_ended and learns else None
    return job_detail(job, base, history, position=position, log_sources=log_sources(folder))
