"""Jobs of a data directory without a service: the methods of Client, straight over the store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

from drumline.config.service import ServiceConfig
from drumline.jobs.board import Board
from drumline.jobs.devices import read_inventory
from drumline.jobs.records import END_STATES
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.store import JobFilter, open_store, store_url
from drumline.service.calls import PAGE
from drumline.service.details import detail_of
from drumline.service.job_logs import log_path
from drumline.service.tails import Place, as_text, place_of_tail, read_piece
from drumline.service.views import JobDetail, JobView, job_view

WHO = Who(owner="local", role="admin")
"""Whoever may write to the data directory, as on a service without keys."""
LOOK_S = 0.5


class InProcess:
    """The jobs of one data directory. A context manager.

    A service on the same directory, running or started later, runs what is submitted here. Methods raise the
    drumline.errors that a service would tell.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._store = open_store(store_url(config))
        self._board = Board(self._store, config, has_gpus=lambda: read_inventory(config).has_gpus)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._store.close()

    def submit(self, request: Mapping[str, Any]) -> JobView:
        """As Client.submit, without a key: nothing is sent twice here."""
        job = self._board.submit(JobRequest.model_validate(request), WHO)
        return job_view(job, "")

    def get(self, job_id: str) -> JobDetail:
        """As Client.get."""
        return detail_of(self._board, self._board.get(job_id, WHO), "")

    def list(self, *, state: Any = None, q: str | None = None) -> Iterator[JobView]:
        """As Client.list."""
        wanted, cursor = JobFilter(states=frozenset(state or ()), text=q), None
        while True:
            page = self._board.find(wanted, WHO, cursor=cursor, limit=PAGE)
            places = self._board.queue.places(page.items)
            yield from (job_view(job, "", places.get(job.id)) for job in page.items)
            if (cursor := page.next_cursor) is None:
                return

    def cancel(self, job_id: str) -> JobView:
        """As Client.cancel."""
        return job_view(self._board.cancel(job_id, WHO), "")

    def retry(self, job_id: str, *, from_checkpoint: bool = False) -> JobView:
        """As Client.retry."""
        return job_view(self._board.retry(job_id, WHO, from_checkpoint=from_checkpoint), "")

    def logs(
        self, job_id: str, *, source: str | None = None, follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """As Client.logs."""
        job = self._board.get(job_id, WHO)
        path, place = log_path(self._board.files(job), source or "command"), Place()
        if tail is not None:
            place = place_of_tail(path, tail, is_final=job.has_ended or not follow)
        while True:
            # Before reading: what is written until the end is then still read.
            has_ended = self._board.get(job_id, WHO).state in END_STATES
            piece = read_piece(path, place, most=PAGE, is_final=has_ended or not follow)
            yield from (as_text(line) for line, _ in piece.lines)
            place = piece.place
            if piece.at_end and (has_ended or not follow):
                return
            if piece.at_end:
                time.sleep(LOOK_S)
