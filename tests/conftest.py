"""For every test: one compute thread, no network, and nothing left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

# Before anything imports torch: the ranks of a test share the cores, and no test may ask a hub for a file.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from tests import leak_check


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that changes the process for those after it; the message names what it left."""
    before = leak_check.take_snapshot()
    yield
    leaks = leak_check.find_leaks(before)
    if leaks:
        leak_check.clean_up(before)
        pytest.fail("the test left something behind:\n  " + "\n  ".join(leaks), pytrace=False)


def pytest_collection_finish() -> None:
    """Set aside what importing all tests has made: each of hundreds of trainers would look through it at its start."""
    gc.collect()
    gc.freeze()
