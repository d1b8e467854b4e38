"""The pool that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Spawned ranks; see RankPool.run."""
    pool = RankPool()
    yield pool
    pool.close()
