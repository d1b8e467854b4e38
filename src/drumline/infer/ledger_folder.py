"""The folder that the workers of a prediction run share: what is in it, and what each byte of its lock file means."""

from __future__ import annotations

import os
from pathlib import Path

from drumline.errors import DataError
from drumline.predictions import PredictionDir

ROWS_LOCK, FACTS_LOCK, PLAN_LOCK, FINAL_LOCK = range(4)
"""Bytes of the lock file that are not a batch's."""
FIRST_BATCH_LOCK = 16


def lock_file(directory: PredictionDir) -> Path:
    """The file whose bytes are locked, and which has no other use."""
    return directory.ledger / "locks"


def make_folders(directory: PredictionDir) -> None:
    """Make the folders of the ledger, for their owner only, where they are absent. Raises DataError where it cannot."""
    try:
        for folder in (directory.ledger, directory.windows, directory.trouble, directory.answers, directory.workers):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the ledger cannot be made in {directory.path}: {error.strerror}",
            "name a folder that may be written to: --set run_dir=FOLDER",
        ) from error


def is_there(file: Path) -> bool:
    """Whether there is such a file now; its folder must exist.

    Opening the folder is when NFS asks its server for it: what was absent may else seem so for half a minute more.
    """
    os.close(os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC))
    return file.is_file()
