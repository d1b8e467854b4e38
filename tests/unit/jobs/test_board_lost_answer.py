"""A store that breaks while it commits: what was kept has its texts, what was not leaves nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drumline.config.service import FilesConfig, ServiceConfig
from drumline.errors import StoreError
from drumline.jobs.board import Board
from drumline.jobs.requests import JobRequest, Who
from drumline.jobs.store import JobFilter, Store, open_store

ADA = Who("ada")
SECRET = "a text that nobody else may see"


def test_a_commit_whose_answer_is_lost_keeps_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real add, whose answer does not arrive; one that was not committed leaves no folder."""
    (tmp_path / "gpt2").mkdir()
    config = ServiceConfig(data_dir=tmp_path, node="here", files=FilesConfig(model_names={"gpt2": tmp_path / "gpt2"}))
    with closing(open_store(f"sqlite:///{tmp_path / 'store.sqlite3'}")) as store:
        submit_and_lose_the_answer(Board(store, config), store, tmp_path, monkeypatch)


def submit_and_lose_the_answer(board: Board, store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = JobRequest.model_validate({"model_name": "gpt2", "texts": [SECRET]})
    add = type(store.jobs).add

    def lost(*arguments: Any) -> Any:
        add(*arguments)
        raise StoreError("the connection broke", "try again")

    monkeypatch.setattr(type(store.jobs), "add", lost)
    with pytest.raises(StoreError):
        board.submit(request, ADA)
    [job] = store.jobs.find(JobFilter(owner="ada", states=frozenset({"queued"}))).items
    assert SECRET in (board.folder(job) / "rows.jsonl").read_text()
    monkeypatch.setattr(type(store.jobs), "add", lambda *_: (_ for _ in ()).throw(StoreError("away", "try again")))
    with pytest.raises(StoreError):
        board.submit(request, ADA)
    assert [each.name for each in (data_dir / "jobs").iterdir()] == [job.id]
