"""The folder that holds what was made of a user's files: what killed builds left in it, and what a full disk says."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from drumline.errors import DataError

STALE_S = 3600.0
"""A temporary file that nobody has written to for so long belongs to a build that was killed."""


def remove_stale(folder: Path) -> None:
    """Remove what killed builds left, of whatever files, so that it does not fill the disk.

    Their names begin with a dot and the key, 64 hexadecimal digits, and end in `.tmp`.
    """
    for left in folder.glob(f".{'[0-9a-f]' * 64}.*.tmp"):
        # Another process may remove it first, and a folder that is only read from cannot be tidied.
        with suppress(OSError):
            parts = [left, *left.iterdir()] if left.is_dir() else [left]
            if time.time() - max(part.stat().st_mtime for part in parts) <= STALE_S:
                continue
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()


def cannot_write(what: str, folder: Path, files: Sequence[Path], error: OSError) -> DataError:
    """The error for a folder that `what` could not be written to, with the room that it has and the files' size."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free / 2**30
    size = sum(file.stat().st_size for file in files) / 2**30
    return DataError(
        f"cannot write {what} to {folder}: {error.strerror} ({free:.2f} GiB free, the files have {size:.2f} GiB)",
        "make room or name another folder: --set data.cache_dir=FOLDER",
    )
