"""Calls that wait for a training, over a real connection: who hangs up leaves the training, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.service.real_server import served
from tests.service.services import config

BODY = {"model_name": "tiny", "dataset_config": {"texts": ["one"]}}
PATH = "/multigpu/training/auto?wait=true"


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    limit = time.monotonic() + limit_s
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return condition()


def test_who_hangs_up_is_not_waited_for_and_the_training_goes_on(tmp_path: Path) -> None:
    with served(config(tmp_path)) as (url, opened):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + PATH, json=BODY, timeout=1.0)
        assert until(lambda: opened.store.jobs.counts() == {"queued": 1})
        assert until(lambda: opened.streams.num_open == 0)


def test_a_service_that_ends_lets_go_of_calls_that_wait(tmp_path: Path) -> None:
    with served(config(tmp_path)) as (url, opened), httpx.Client(timeout=20) as client:
        opened.end_streams()
        answer = client.post(url + PATH, json=BODY)
        assert (answer.status_code, answer.json()["status"]) == (202, "queued")


def test_as_many_may_wait_as_there_may_be_streams(tmp_path: Path) -> None:
    with served(config(tmp_path, limits={"max_streams": 1})) as (url, opened):
        opened.streams.num_open = 1
        answer = httpx.post(url + PATH, json=BODY)
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert opened.store.jobs.counts() == {}
