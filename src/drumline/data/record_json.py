"""JSON: one record a line, or a file that is one array of records, read a piece at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from drumline.data.record_text import MAX_RAW_CHARS, MAX_ROW_CHARS, Numbered, as_record, bad, open_text, unclosed
from drumline.errors import DataError

CHUNK_CHARS = 2**20
_SPACE = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
# A whole string, or one that the text so far leaves open; a bracket; what ends a value between brackets.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?P<closed>"?)|[\[\]{},]', re.DOTALL)


def read_json_lines(path: Path) -> Iterator[Numbered]:
    """Yield the rows of a file with one JSON object a line; lines without text are none."""
    with open_text(path, newline="\n") as text:
        number = 0
        while line := text.readline(MAX_ROW_CHARS):
            number += 1
            if len(line) == MAX_ROW_CHARS and line[-1] != "\n":
                yield bad(number, f"it is longer than {MAX_ROW_CHARS:,} characters", line)
                while (rest := text.readline(MAX_ROW_CHARS)) and rest[-1] != "\n":
                    pass
            elif line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    yield bad(number, _problem(error), line)
                else:
                    yield as_record(number, value, line)


def read_json(path: Path) -> Iterator[Numbered]:
    """Yield the rows of a file that is one JSON array of objects, or has one object a line in spite of its name.

    Memory holds a piece of the file and the row at hand. Too many commas, or too few, between rows are passed over.
    Raises DataError for anything else, and for a row or an array without an end.
    """
    with open_text(path, newline="\n") as text:
        array = _Array(path, text)
        if array.first == "[":
            yield from array.rows()
            return
    if array.first == "{" and _is_one_line(path):
        yield from read_json_lines(path)
    elif array.first:
        what = "one object that goes over several lines" if array.first == "{" else "neither an array nor an object"
        raise DataError(
            f"{path} holds {what}, where an array of objects is wanted",
            'write it as [{"text": ...}, {"text": ...}], or with one object a line and the ending .jsonl',
        )


class _Array:
    """A text, held from the row at hand to the end of the last piece that was read."""

    def __init__(self, path: Path, text: TextIO) -> None:
        self._path = path
        self._file = text
        self._text = ""
        self._position = 0
        self._line = 1
        self._ended = False
        self.first = self._next(_SPACE)

    def rows(self) -> Iterator[Numbered]:
        self._advance(self._position + 1)
        decode = json.JSONDecoder().raw_decode
        while (start := self._next(_SEPARATORS)) != "]":
            if not start:
                raise DataError(
                    f"{self._path}:{self._line}: the array does not end: there is no ] after its last row",
                    "fetch the file again: it is cut off",
                )
            try:
                value, end = decode(self._text, self._position)
            except (ValueError, RecursionError) as error:
                found = self._end()
                if found is None:
                    self._read_on()
                    continue
                row = self._text[self._position : found]
                yield bad(self._line, _problem(error), row)
                self._advance(found)
                continue
            # Only of an object can it be told at once that it is complete: the 1 that is there may be the start of 12.
            if end == len(self._text) and not isinstance(value, dict) and not self._ended:
                self._read_on()
                continue
            yield as_record(self._line, value, self._text[self._position : min(end, self._position + MAX_RAW_CHARS)])
            self._advance(end)
        self._advance(self._position + 1)
        if self._next(_SPACE):
            raise DataError(
                f"{self._path}:{self._line}: more text follows the end of the array",
                "keep one array a file, or write one object a line with the ending .jsonl",
            )

    def _next(self, passed: re.Pattern[str]) -> str:
        """Go on to what is not passed over and give its first character; empty at the end of the file."""
        while True:
            match = passed.match(self._text, self._position)
            assert match is not None
            self._advance(match.end())
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._read_on()

    def _advance(self, position: int) -> None:
        self._line += self._text.count("\n", self._position, position)
        self._position = position

    def _read_on(self) -> None:
        """Drop what was gone through, and read more: as much again as is held, so that a long row is no square."""
        held = len(self._text) - self._position
        if self._ended or held > MAX_ROW_CHARS:
            raise unclosed(self._path, self._line, "a bracket or a quote is not closed")
        piece = self._file.read(max(CHUNK_CHARS, held))
        self._ended = not piece
        self._text = self._text[self._position :] + piece
        self._position = 0

    def _end(self) -> int | None:
        """Where the value at hand ends, by its brackets and quotes alone; None where that lies further on."""
        depth = 0
        for token in _TOKENS.finditer(self._text, self._position):
            mark = token.group()
            if mark[0] == '"':
                if not token["closed"]:
                    return None
            elif mark in "{[":
                depth += 1
            elif depth == 0:  # the value had no brackets, or one bracket too many
                return token.end() if mark == "}" else token.start()
            elif mark in "}]":
                depth -= 1
                if depth == 0:
                    return token.end()
        return None


def _is_one_line(path: Path) -> bool:
    with open_text(path, newline="\n") as text:
        try:
            return isinstance(json.loads(text.readline(MAX_ROW_CHARS)), dict)
        except (ValueError, RecursionError):
            return False


def _problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON: {error.msg[:1].lower()}{error.msg[1:]}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"it is not JSON: {error}"
