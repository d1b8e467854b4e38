"""The client of a drumline service for programs with an event loop; see client.py, which it follows line by line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from drumline.errors import RemoteError
from drumline.jobs.records import END_STATES
from drumline.service.calls import (
    AGAIN,
    Call,
    Stream,
    change_call,
    delete_data_call,
    finetune_request,
    infer_request,
    job_call,
    list_call,
    output_call,
    page_call,
    read,
    stream_call,
    submit_call,
    wait_before,
    waits,
)
from drumline.service.connection import (
    ADDRESS,
    FIRST_LOOK_S,
    LONGEST_LOOK_S,
    Address,
    OnProgress,
    Texts,
    httpx,
    line_of,
    not_ended,
    stream_settings,
)
from drumline.service.event_stream import END, REWRITTEN, Event, EventReader
from drumline.service.fetched_file import fetched_file
from drumline.service.given import Given
from drumline.service.other_clients import AsyncAdmin, AsyncMultigpu, AsyncRuns
from drumline.service.views import JobDetail, JobList, JobView, LinesPage, RecordsPage

A = TypeVar("A", bound=BaseModel)


class AsyncClient:
    """As Client, for programs with an event loop: every method is awaited, every listing and stream is `async for`."""

    def __init__(
        self,
        url: str = ADDRESS,
        key: str | None = None,
        *,
        key_file: str | Path | None = None,
        timeout_s: float = 30.0,
        tries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._address = Address(url, key, key_file, timeout_s)
        self._tries = tries
        self._http = httpx.AsyncClient(**self._address.settings, transport=transport)
        self.runs = AsyncRuns(self._read)
        self.multigpu = AsyncMultigpu(self._read, self._ask)
        self.admin = AsyncAdmin(self._read, self._ask)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def submit(self, request: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None) -> JobView:
        """Ask for a job, as POST /jobs takes it (jobs.requests.JobRequest); the same key again gives the same job."""
        return await self._read(JobView, submit_call(request, idempotency_key))

    async def finetune(
        self,
        model_name: str,
        dataset: Texts | str | Path,
        settings: Mapping[str, Any] | None = None,
        **job: Any,
    ) -> JobView:
        """Ask for a fine-tuning. dataset: texts or rows, or a path that the service may read.

        settings: epochs, learning_rate, … as in training_config, or names of the schema. job: other fields of the
        request, as name, tags, resources.
        """
        return await self.submit(finetune_request(model_name, dataset, settings, job))

    async def infer(
        self,
        model_name: str,
        rows: Texts | str | Path,
        task: Mapping[str, Any] | None = None,
        **job: Any,
    ) -> JobView:
        """Ask for a prediction. rows: texts or rows, or a path that the service may read. task: kind and its settings.

        job: other fields of the request, as settings, columns, output, name, resources.
        """
        return await self.submit(infer_request(model_name, rows, task, job))

    async def get(self, job_id: str) -> JobDetail:
        """One job at this moment."""
        return await self._read(JobDetail, job_call(job_id))

    async def list(self, **filters: Any) -> AsyncIterator[JobView]:
        """Jobs, the newest first, all that fit: state (one or several), owner, tag, kind, user_id, q, …."""
        cursor = None
        while True:
            page = await self._read(JobList, list_call(filters, cursor=cursor))
            for job in page.items:
                yield job
            if (cursor := page.next) is None:
                return

    async def cancel(self, job_id: str) -> JobView:
        """Ask a job to save and end; one that still waits ends at once."""
        return await self._read(JobView, change_call(job_id, "cancel"))

    async def retry(self, job_id: str, *, from_checkpoint: bool = False) -> JobView:
        """Ask for an ended job once more; the answer is a new one, which goes on from the newest checkpoint or anew."""
        return await self._read(JobView, change_call(job_id, "retry", {"from_checkpoint": from_checkpoint}))

    async def delete_data(self, job_id: str) -> None:
        """Remove the texts of an ended job."""
        await self._ask(delete_data_call(job_id))

    async def output(self, job_id: str, path: str | Path) -> Path:
        """Save the answers of a job that has predicted; the file is there once it is whole. Raises Conflict before."""
        target = Path(path)
        for wait_s in (*waits(self._tries), None):
            try:
                async with self._http.stream("GET", output_call(job_id).path) as response:
                    if response.is_success:
                        with fetched_file(target) as file:
                            async for chunk in response.aiter_bytes():
                                file.write(chunk)
                        return target
                    await response.aread()
                    failure: Exception = self._address.told(response)
                    if response.status_code not in AGAIN:
                        raise failure
            except httpx.TransportError as error:
                failure = self._address.failure(error)
            if wait_s is None:
                raise failure
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    async def wait(
        self, job_id: str, timeout_s: float | None = None, on_progress: OnProgress | None = None
    ) -> JobDetail:
        """The job once it has ended. on_progress is called with each look at it. Raises RemoteError after timeout_s."""
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        look_s = FIRST_LOOK_S
        while (job := await self.get(job_id)).state not in END_STATES:
            if on_progress is not None:
                on_progress(job)
            if limit is not None and time.monotonic() + look_s > limit:
                raise not_ended(job, timeout_s)
            await asyncio.sleep(look_s)
            look_s = min(1.5 * look_s, LONGEST_LOOK_S)
        return job

    async def logs(
        self, job_id: str, *, source: str | None = None, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[str]:
        """Lines of a job's log (source: command, rank_<n>, launcher); follow: until it has ended, to the last line.

        tail: only the last lines, so many of them, and with follow what comes. Of a file that has begun anew, which
        logs of a run never do, all lines come.
        """
        if follow:
            async for event in self._follow(stream_call(job_id, "logs", source, tail)):
                if event.name != REWRITTEN:
                    yield line_of(event)
            return
        after, done = None, False
        while not done:
            page = await self._read(LinesPage, page_call(job_id, "logs", after, source, tail))
            for line in page.lines:
                yield line
            after, done = page.next, page.done or page.next == after

    def metrics(self, job_id: str, *, follow: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Records of a job's metrics.jsonl; follow: until it has ended, to the last one.

        A run that goes on from a checkpoint drops the records of after it, and makes those updates again: they come a
        second time, and count, where a step is not above the one before. What has stayed in the file comes once.
        """
        return self._records(job_id, "metrics", follow)

    def events(self, job_id: str, *, follow: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Records of a job's events.jsonl, as metrics."""
        return self._records(job_id, "events", follow)

    async def _records(self, job_id: str, stream: Stream, follow: bool) -> AsyncIterator[dict[str, Any]]:
        given = Given()
        if follow:
            async for event in self._follow(stream_call(job_id, stream)):
                if event.name == REWRITTEN:
                    given.begin()
                elif given.is_new(event.data):
                    yield event.data
            return
        after, done = None, False
        while not done:
            page = await self._read(RecordsPage, page_call(job_id, stream, after))
            if page.rewritten:
                given.begin()
            for record in filter(given.is_new, page.records):
                yield record
            after, done = page.next, page.done or page.next == after

    async def _read(self, kind: type[A], call: Call) -> A:
        return read(kind, (await self._ask(call)).content, self._address.url)

    async def _ask(self, call: Call) -> httpx.Response:
        for wait_s in (*waits(self._tries if call.is_repeatable else 1), None):
            try:
                response = await self._http.request(
                    call.method, call.path, params=list(call.query), json=call.body, headers=dict(call.headers)
                )
            except httpx.TransportError as error:
                if wait_s is None:
                    raise self._address.failure(error) from error
            else:
                if response.is_success:
                    return response
                if wait_s is None or response.status_code not in AGAIN:
                    raise self._address.told(response)
                wait_s = wait_before(wait_s, response.headers.get("Retry-After"))
            await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    async def _follow(self, call: Call) -> AsyncIterator[Event]:
        """Events up to the last one; where the connection breaks, on from there."""
        reader, waiting = EventReader(), waits(self._tries)
        failure: Exception = RemoteError("the stream ended before its end", "", "answer", 200)
        while True:
            reader.begin()
            try:
                async with self._http.stream(call.method, call.path, **stream_settings(call, reader)) as response:
                    if not response.is_success:
                        await response.aread()
                        failure = self._address.told(response)
                        if response.status_code not in AGAIN:
                            raise failure
                    async for event in _events(reader, response):
                        if event.name == END:
                            return
                        waiting = waits(2 * self._tries)  # where there was a service there will be one
                        yield event
            except httpx.TransportError as error:
                failure = self._address.failure(error)
            except ValueError as error:
                raise self._address.broken(error) from error
            if (wait_s := next(waiting, None)) is None:
                raise failure
            await asyncio.sleep(wait_s)


async def _events(reader: EventReader, response: httpx.Response) -> AsyncIterator[Event]:
    """What a stream sends; nothing where the answer is no stream."""
    if response.is_success:
        async for chunk in response.aiter_bytes():
            for event in reader.feed(chunk):
                yield event
