"""Reads files that grow: whole lines from a place on, a bounded piece at a time. Pure but for the reading."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.rundir import TORN
from drumline.service.views import finite

READ_BYTES = 256 * 1024
"""Read at a time; a line of a log that is longer comes in pieces."""
RECORD_BYTES = 8 * 2**20
"""Of the longest record: half of one would be none."""
TAIL_BYTES = 16 * 2**20
"""Read of a file's end, at most, to find its last lines: a progress bar may have written a gigabyte of one line."""
PLACE = r"^[0-9]{1,20}(:[0-9]{1,20})?$"
"""What Place.parse takes."""


@dataclass(frozen=True)
class Place:
    """Where in a file somebody is."""

    offset: int = 0
    inode: int | None = None
    """Which file it was; None: not known."""

    def __str__(self) -> str:
        return str(self.offset) if self.inode is None else f"{self.offset}:{self.inode}"

    @classmethod
    def parse(cls, text: str | None) -> Place:
        """What `str` gave, as a browser sends it back in Last-Event-ID; the beginning for anything else."""
        text = text or ""
        if not re.fullmatch(PLACE, text):
            return cls()
        offset, _, inode = text.partition(":")
        return cls(int(offset), int(inode) if inode else None)


@dataclass(frozen=True)
class Piece:
    """What was read."""

    lines: tuple[tuple[bytes, Place], ...] = ()
    """Each without its end, with the place after it."""
    place: Place = Place()
    """Where to go on."""
    is_rewritten: bool = False
    """The file is another one, or shorter than it was: these lines are from its beginning."""
    at_end: bool = True
    """Whether nothing more was there but, perhaps, half a line."""


def read_piece(path: Path, place: Place, *, most: int, is_final: bool, longest: int = READ_BYTES) -> Piece:
    """Read up to `most` lines; none where there is no file.

    is_final: nothing more will come, so half a line is one. longest: bytes, READ_BYTES at least; a line that has more
    comes in pieces, none of which begins or ends within a character.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Piece(place=place)
    try:
        status = os.fstat(descriptor)
        is_rewritten = status.st_size < place.offset or place.inode not in (None, status.st_ino)
        start = 0 if is_rewritten else place.offset
        room = READ_BYTES
        data = os.pread(descriptor, room, start)
        if longest > room == len(data) and b"\n" not in data:
            room = longest
            data = os.pread(descriptor, room, start)
    finally:
        os.close(descriptor)
    is_last = start + len(data) >= status.st_size
    lines: list[tuple[bytes, Place]] = []
    taken = 0
    while len(lines) < most and taken < len(data):
        end = data.find(b"\n", taken)
        if end < 0:
            # Half a line waits for its other half, unless there is none, or it is longer than is read at once.
            if is_final and is_last:
                end = len(data) - 1
            elif taken == 0 and len(data) == room:
                end = whole_characters(data) - 1
            else:
                break
        line, taken = data[taken : end + 1], end + 1
        lines.append((line, Place(start + taken, status.st_ino)))
    at_end = is_last and (taken == len(data) or (len(lines) < most and not is_final))
    return Piece(tuple(lines), Place(start + taken, status.st_ino), is_rewritten, at_end)


def place_of_tail(path: Path, lines: int, *, is_final: bool) -> Place:
    """Where the last lines of a file begin, so many of them; the beginning of one that has fewer, or is not there.

    is_final: half a line at its end is one of them. Read from the end, TAIL_BYTES at most: of longer lines it is fewer.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Place()
    try:
        status = os.fstat(descriptor)
        return Place(_begin_of_tail(descriptor, status.st_size, lines, is_final=is_final), status.st_ino)
    finally:
        os.close(descriptor)


def _begin_of_tail(descriptor: int, size: int, lines: int, *, is_final: bool) -> int:
    least, at, found = max(0, size - TAIL_BYTES), size, size
    # The end of the line before those that are wanted, counted from the file's end.
    left = lines if is_final and os.pread(descriptor, 1, max(0, size - 1)) != b"\n" else lines + 1
    while at > least:
        begin = max(least, at - READ_BYTES)
        block = os.pread(descriptor, at - begin, begin)
        end = len(block)
        while (end := block.rfind(b"\n", 0, end)) >= 0:
            found, left = begin + end + 1, left - 1
            if left == 0:
                return found
        at = begin
    if least == 0:
        return 0
    if found < size:
        return found
    # All that may be read is one line, or a piece of one, which begins with a whole character.
    block = os.pread(descriptor, 3, least)
    return least + len(block) - len(block.lstrip(bytes(range(0x80, 0xC0))))


def whole_characters(data: bytes) -> int:
    """How many of these bytes there are before a character of UTF-8 that is cut off at their end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # where a character begins
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
    return len(data)


def as_text(line: bytes) -> str:
    """A line of a log."""
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def as_record(line: bytes) -> dict[str, Any] | None:
    """A line of a .jsonl file, null for what is no number; None for one that is torn or no record."""
    if line.endswith(TORN):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    told: dict[str, Any] = finite(record)
    return told
