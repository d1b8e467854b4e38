from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from typing import Any

import pytest

from drumline.data.loader import LoaderOptions, RowLoader
from drumline.data.source import as_source
from drumline.errors import DataError
from tests.unit.data.test_loader import CountEvery, Noisy, loader_of, pieces


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGKILL, "memory runs out"), (signal.SIGSEGV, "a crash in native code")]
)
def test_a_loader_process_that_is_killed_says_why(number: signal.Signals, words: str) -> None:
    class Deadly(Noisy):
        def __getitem__(self, row: int) -> dict[str, Any]:
            if row == 2:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return super().__getitem__(row)

    with loader_of(Deadly(6), num_workers=1) as loader, pytest.raises(DataError, match=words) as caught:
        list(loader.read(pieces(*([row] for row in range(6)))))
    assert "loader.num_workers" in caught.value.fix
    assert caught.value.__cause__ is not None


class BreaksConnection:
    """Meets, where it is received, the connection that its sender's end has broken."""

    def __reduce__(self) -> Any:
        return (_reset, ())


def _reset() -> None:
    raise ConnectionResetError(104, "Connection reset by peer")


def test_a_loader_process_whose_files_close_before_it_has_ended_was_killed() -> None:
    class Dying(Noisy):
        def __getitem__(self, row: int) -> Any:
            if row == 1:
                time.sleep(0.5)  # row 0 is received meanwhile
                os.closerange(3, 1_000)  # as the kernel does, some time before it has an exit code
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            return BreaksConnection()

    source = as_source(Dying(2), lambda rows: rows[0])
    loader = RowLoader(source, CountEvery(), LoaderOptions(num_workers=1))
    with closing(loader), pytest.raises(DataError, match="memory runs out") as caught:
        list(loader.read(pieces([0], [1])))
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_a_loader_process_that_closes_its_files_and_lives_on_is_not_waited_for_to_no_end() -> None:
    class Silent(Noisy):
        def __getitem__(self, row: int) -> Any:
            if row == 1:
                time.sleep(0.5)  # row 0 is received meanwhile
                os.closerange(3, 1_000)
                time.sleep(30)
            return BreaksConnection()

    source = as_source(Silent(2), lambda rows: rows[0])
    loader = RowLoader(source, CountEvery(), LoaderOptions(num_workers=1))
    began = time.monotonic()
    try:
        with pytest.raises(ConnectionResetError):
            list(loader.read(pieces([0], [1])))
        assert time.monotonic() - began < 15
    finally:
        for worker in loader._reader._pass._workers:
            worker.kill()
        loader.close()
