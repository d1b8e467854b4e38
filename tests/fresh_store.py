"""Empty stores for tests, copied from one that was made by the migrations: those take longer than most tests."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from drumline.jobs.store import Store, open_store


def fresh_store(folder: Path) -> Store:
    """An empty store in a file of a folder, opened; whoever asks closes it."""
    path = folder / "store.sqlite3"
    path.touch(mode=0o600)
    path.write_bytes(_empty())
    return open_store(f"sqlite:///{path}")


@lru_cache(maxsize=1)
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite3"
        open_store(f"sqlite:///{path}").close()
        return path.read_bytes()
