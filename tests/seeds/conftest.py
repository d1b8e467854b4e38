"""Stand-ins for the models that the documents name, made once for all blocks."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `llama`, a chat model of two layers with random weights."""
    from tests.tiny_models import save_llama  # it takes seconds, and `make test` has no need of it

    folder = tmp_path_factory.mktemp("models")
    save_llama(folder / "llama")
    return folder
