"""Whether the files of a run's rows are those that it began with: by size, and by content where that may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Source = Mapping[str, Any]
"""A file as rows.json has it: path, size in bytes, mtime_ns, and sha256 of its content (null: of an image)."""


def content_hash(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def change_of(known: Sequence[Source], now: Sequence[Source]) -> str | None:
    """What is other about the first file that is, with both values; None: nothing is.

    Files are told by their names and order, as another machine may have their folder at another place. One that has
    another time of change only is read. Images have their sizes compared alone. Raises OSError.
    """
    for before, after in zip(known, now, strict=False):
        name, other = Path(before["path"]).name, Path(after["path"]).name
        if name != other:
            return f"where {name} was, there is {other} now"
        if before["size"] != after["size"]:
            return f"{after['path']} had {before['size']:,} bytes, and has {after['size']:,} now"
        if before["mtime_ns"] == after["mtime_ns"]:
            continue
        if "sha256" not in before:
            return f"{after['path']} was changed at {before['mtime_ns']} ns since 1970, and at {after['mtime_ns']} now"
        if before["sha256"] is not None and before["sha256"] != (found := content_hash(Path(after["path"]))):
            return f"{after['path']} had the SHA-256 {before['sha256'][:16]}..., and has {found[:16]}... now"
    return None if len(known) == len(now) else f"there were {len(known):,} files, and there are {len(now):,} now"
