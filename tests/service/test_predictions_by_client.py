"""The clients of a service, with jobs that predict: asked for, and their answers saved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline import AsyncClient, Client
from drumline.cli.job_request import request_of
from drumline.errors import ConfigError, Conflict, NotFound
from drumline.jobs.keeper_files import answers_of
from drumline.jobs.records import Work
from drumline.jobs.requests import JobRequest
from drumline.service.state import Service
from tests.service.real_server import served
from tests.service.services import add_job, config

TASK = {"kind": "choose", "labels": ["a", "b"], "prompt": {"prompt": "{text}"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    with served(config(tmp_path_factory.mktemp("service"), prefix="/api")) as found:
        yield found


def test_answers_are_saved_once_they_are_there(place: tuple[str, Service], tmp_path: Path) -> None:
    content = b"".join(b"%d,x\n" % number for number in range(300_000))
    job = add_job(place[1], state="succeeded", work=Work("infer", {}, "/m", "tiny", output="csv"))
    file = tmp_path / "mine.csv"
    with Client(place[0]) as client:
        waiting = client.infer("tiny", ["one", {"text": "two"}], TASK, output="csv", name="asked")
        assert (waiting.kind, waiting.state, waiting.name) == ("infer", "queued", "asked")
        with pytest.raises(Conflict, match="once it has succeeded"):
            client.output(waiting.id, file)
        with pytest.raises(NotFound):
            client.output(job.id, file)
        answers_of(place[1].board.folder(job), "csv").write_bytes(content)
        assert client.output(job.id, file) == file and file.read_bytes() == content
        with pytest.raises(ConfigError, match="cannot be written"):
            client.output(job.id, tmp_path / "none" / "mine.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_the_same_awaited(place: tuple[str, Service], tmp_path: Path) -> None:
    job = add_job(place[1], state="succeeded", work=Work("infer", {}, "/m", "tiny"))
    answers_of(place[1].board.folder(job), "jsonl").write_bytes(b"{}\n")

    async def use() -> Path:
        async with AsyncClient(place[0]) as client:
            assert (await client.infer("tiny", ["one"], TASK)).kind == "infer"
            return await client.output(job.id, tmp_path / "mine.jsonl")

    assert asyncio.run(use()).read_bytes() == b"{}\n"


def test_a_command_asks_for_one() -> None:
    says = ["kind=infer", "task={kind: score}", "output=csv", "columns={id: key}"]
    asked = JobRequest.model_validate(request_of(None, "tiny", ["rows.jsonl"], ["batching.tokens=64"], says))
    assert (asked.kind, asked.path, asked.task, asked.output) == ("infer", "rows.jsonl", {"kind": "score"}, "csv")
    assert asked.settings == {"batching": {"tokens": 64}}
    for wrong in ("kind=train", "kind=finetune"):
        with pytest.raises(ConfigError, match="--job kind"):
            request_of(None, "tiny", ["rows.jsonl"], [], [wrong])
    with pytest.raises(ConfigError, match="--job kind"):
        request_of("quickstart", None, [], [], ["kind=infer"])
