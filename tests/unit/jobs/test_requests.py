"""Requests for jobs: their sizes are bounded, and what nobody knows is an error."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.errors import ConfigError
from drumline.jobs.requests import JobRequest


@pytest.mark.parametrize(
    "says",
    [
        {"nobody": 1},
        {"kind": "python"},
        {"texts": "one text"},
        {"texts": [1]},
        {"texts": ["x" * 10_000_001]},
        {"path": "a\0b"},
        {"path": "x" * 5000},
        {"path": ["a\nb"]},
        {"path": ["a"] * 1001},
        {"model_name": ""},
        {"max_length": 0},
        {"max_length": 2**40},
        {"name": "x" * 201},
        {"name": "a\x1b[31m"},
        {"tags": ["x"] * 51},
        {"tags": [""]},
        {"user_id": ""},
        {"user_id": 1.5},
        {"user_id": 10**30},
        {"max_length": "5"},
        {"columns": {"text": 1}},
        {"resources": {"devices": 0}},
        {"resources": {"devices": True}},
        {"resources": {"priority": 101}},
        {"resources": {"time_limit_s": float("inf")}},
        {"resources": {"time_limit_s": 0}},
        {"resources": {"retries": -1}},
        {"resources": {"memory_bytes": 2**70}},
        {"resources": {"gpus": "GPU-1"}},
        {"resources": {"gpus": [""]}},
        {"resources": {"gpus": [0]}},
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(says: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        JobRequest.model_validate({"model_name": "gpt2", "texts": ["a"], **says})


def test_what_the_ads_service_sends_and_what_people_write_is_taken() -> None:
    found = JobRequest.model_validate(
        {"model_name": "gpt2", "texts": ["Grüße 🚀\nzwei", {"prompt": "a", "completion": "b"}], "user_id": 123}
    )
    assert found.user_id == 123 and found.kind == "finetune" and found.resources is None


@pytest.mark.parametrize("name", ["texts", "path", "tags"])
def test_the_first_wrong_entry_ends_the_look_at_a_list(name: str) -> None:
    """An error has hundreds of bytes: of a body of 32 MiB there could be millions."""
    with pytest.raises(ConfigError) as raised:
        JobRequest.model_validate({"model_name": "gpt2", name: [1] * 5000})
    assert raised.value.problem.count("\n") < 3
