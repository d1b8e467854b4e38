"""The state file: one byte a batch, and how a process looks at it."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drumline.predictions import DONE

_OPEN = re.compile(rb"[^\xff]")


class BatchStates:
    """What is known of all batches, read anew from the first open one on; only `write` may be called from any thread.

    The file is opened for each look, since that is when NFS asks its server for what others wrote, and closed after
    each change, since that is when it tells it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = bytearray()
        self._first_open = 0
        self._using = threading.Lock()

    def look(self, num_batches: int) -> None:
        """Read the states of so many batches."""
        with self._opened(os.O_RDONLY) as descriptor:
            wanted = num_batches - self._first_open
            found = os.pread(descriptor, wanted, self._first_open)
        self._known[self._first_open :] = found.ljust(wanted, b"\0")
        place = _OPEN.search(self._known, self._first_open)
        self._first_open = place.start() if place else num_batches

    @property
    def num_open(self) -> int:
        """Batches that are not done, by the last look."""
        return len(self._known) - self._first_open - self._known.count(DONE, self._first_open)

    def open_batches(self) -> Iterator[int]:
        """Numbers of the batches that are not done, by the last look, in their order."""
        known = bytes(self._known[self._first_open :])
        return (self._first_open + place.start() for place in _OPEN.finditer(known))

    def read(self, batch: int) -> int:
        """What the file says of one batch now."""
        with self._opened(os.O_RDONLY) as descriptor:
            return (os.pread(descriptor, 1, batch) or b"\0")[0]

    def write(self, batch: int, state: int) -> None:
        """Set the byte of one batch. Raises OSError.

        It outlives the process, not always the machine: what is forgotten is done again.
        """
        with self._opened(os.O_WRONLY) as descriptor:
            # NFS writes a whole page, with what it took the neighbours to be, unless a part of the file is locked.
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, batch)
            os.pwrite(descriptor, bytes([state]), batch)

    def extend(self, num_batches: int) -> None:
        """Make room for so many batches: written out, as a hole in a file may find no room on a disk later."""
        with self._opened(os.O_WRONLY | os.O_CREAT | os.O_DSYNC) as descriptor:
            size = os.fstat(descriptor).st_size
            missing = bytes(max(0, num_batches - size))
            while missing:
                written = os.pwrite(descriptor, missing, size)
                size += written
                missing = missing[written:]

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        # One at a time: closing one descriptor of a file drops the locks that others of the process have on it.
        with self._using:
            descriptor = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
