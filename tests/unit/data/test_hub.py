"""Files in the hub's cache on this machine."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest

from drumline.data.hub import Hub, fetch
from drumline.errors import DataError

COMMIT = "0" * 40


def test_a_cache_without_room_for_a_lock_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository = tmp_path / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "snapshots" / COMMIT / "tokenizer.json").write_text("{}")
    # As on a read-only mount: there the folder of locks cannot be made, here since a file has its name.
    (tmp_path / ".locks").write_text("")
    hub = Hub(cache_dir=tmp_path)
    assert fetch("org/name", "model.path", ["tokenizer.json"], hub) == repository / "snapshots" / COMMIT
    with pytest.raises(DataError, match="the cache does not hold all"):
        fetch("org/other", "model.path", ["tokenizer.json"], hub)
