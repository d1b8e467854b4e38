"""Locks that processes on any number of machines share: one byte of a file each, freed by the kernel with its holder.

They are POSIX's byte-range locks, which work on NFS too, and have two traps: closing any descriptor of the file drops
all that the process holds, and a process never keeps out itself. So the file has no other use, each process opens it
once whatever number of handles it has, and what one handle holds counts as held for the others.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drumline.errors import DataError
from drumline.rundir import NO_LOCKS

LOOK_S = 0.05
"""Between two tries to take a lock that another has."""


class _Shared:
    """The one descriptor of a lock file in this process, and which of its bytes are held here."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.pid = os.getpid()
        self.handles = 0
        self.held: set[int] = set()


_mutex = threading.Lock()
_open: dict[tuple[int, int], _Shared] = {}
"""By device and inode: a file may be opened under several names."""


class Locks:
    """A handle on a lock file; several of one process keep each other out as those of different processes do."""

    def __init__(self, path: Path) -> None:
        """Open the file, made where it is absent. Raises DataError where the file system knows no locks."""
        with _mutex:
            self._shared = _found(path) or _opened(path)
            self._shared.handles += 1
        self._own: set[int] = set()
        self._closed = False

    def try_take(self, byte: int) -> bool:
        """Take the lock of one byte, unless anybody has it. Raises DataError where there are no locks."""
        with _mutex:
            self._check()
            if byte in self._shared.held:
                return False
            if not _try_lock(self._shared, byte):
                return False
            self._shared.held.add(byte)
            self._own.add(byte)
            return True

    def give(self, byte: int) -> None:
        """Give a byte back that this handle holds."""
        with _mutex:
            self._check()
            self._own.remove(byte)
            self._release(byte)

    @contextmanager
    def held(self, byte: int, stop: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold a byte for the length of a block, waiting for it; False where `stop` came first, and nothing is held."""
        while not (taken := self.try_take(byte)) and not stop():
            time.sleep(LOOK_S)
        try:
            yield taken
        finally:
            if taken:
                self.give(byte)

    def close(self) -> None:
        """Give everything back; closing twice is allowed."""
        with _mutex:
            if self._closed:
                return
            self._closed = True
            for byte in self._own:
                self._release(byte)
            self._own.clear()
            self._shared.handles -= 1
            if not self._shared.handles:
                _open.pop(_key(os.fstat(self._shared.descriptor)))
                os.close(self._shared.descriptor)

    def _check(self) -> None:
        if self._closed:
            raise ValueError(f"{self._shared.path} is closed")
        if self._shared.pid != os.getpid():
            raise RuntimeError(
                f"{self._shared.path} was opened before this process was forked, and holds nothing in it"
            )

    def _release(self, byte: int) -> None:
        self._shared.held.discard(byte)
        fcntl.lockf(self._shared.descriptor, fcntl.LOCK_UN, 1, byte)


def _found(path: Path) -> _Shared | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    shared = _open.get(_key(found))
    return shared if shared and shared.pid == os.getpid() else None


def _opened(path: Path) -> _Shared:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataError(
            f"the ledger in {path.parent} cannot be written to: {error.strerror}",
            "make room, or name a folder that may be written to: --set run_dir=FOLDER",
        ) from error
    shared = _Shared(path, descriptor)
    _open[_key(os.fstat(descriptor))] = shared
    return shared


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _try_lock(shared: _Shared, byte: int) -> bool:
    try:
        fcntl.lockf(shared.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno in NO_LOCKS:
            raise DataError(
                f"the file system of {shared.path.parent} knows no locks ({os.strerror(error.errno or 0)}), by which "
                "workers share the rows",
                "put the ledger where there are locks, as on a local disk or on NFS: --set run_dir=FOLDER",
            ) from error
        raise
    return True
