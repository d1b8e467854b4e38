"""Answers on disk: one file a worker, a line a batch; and the index by which they are found again."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.infer.records import Answer
from drumline.predictions import PredictionDir
from drumline.rundir import TORN, sync_directory

VECTOR = "float32 in base64"
"""The one name in an object that stands for an array: as decimals a vector takes a hundred times longer to write."""

_FEWEST_PACKED = 16
"""Shorter lists of numbers are left as they are, and can be read by eye."""
_HEAD = re.compile(rb'\{"batch": (\d+), "answers": ')


class Encoded(NamedTuple):
    """An answer, and the text by which it is kept."""

    answer: Answer
    text: str


def encode(answer: Answer) -> Encoded:
    """Pure. Raises TypeError, ValueError or RecursionError for what JSON cannot hold."""
    columns = (f"{_to_json(name)}: {_text_of(value)}" for name, value in answer.items())
    return Encoded(answer, f"{{{', '.join(columns)}}}")


class AnswersWriter:
    """Appends batches to the file of one worker; not thread-safe. The file is made with the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def write(self, batch: int, rows: Sequence[int], answers: Sequence[Answer | Encoded]) -> None:
        """Append the answers of a batch, durably. Raises OSError where there is no room; nothing is then appended."""
        texts = (each.text if isinstance(each, Encoded) else encode(each).text for each in answers)
        pairs = ", ".join(f"[{row}, {text}]" for row, text in zip(rows, texts, strict=True))
        line = f'{{"batch": {batch}, "answers": [{pairs}]}}\n'.encode()
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            sync_directory(self._path.parent)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            line = TORN + line
        try:
            self._append(line)
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        left = memoryview(line)
        while left:  # one call writes 2 GiB at most
            written = os.write(self._descriptor, left)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            left = left[written:]


class AnswersIndex:
    """Where each batch's answers stand, as of when it was made; a batch that stands there twice counts once."""

    def __init__(self, directory: PredictionDir) -> None:
        self._files = sorted(directory.answers.glob("*.jsonl"))
        self._places: dict[int, tuple[int, int, int]] = {}
        for number, file in enumerate(self._files):
            self._look_through(number, file)

    def __contains__(self, batch: int) -> bool:
        return batch in self._places

    def read(self, batch: int) -> dict[int, Answer]:
        """The answers of a batch, by row; arrays are NumPy's. Raises KeyError where there are none."""
        number, start, size = self._places[batch]
        with self._files[number].open("rb") as file:
            file.seek(start)
            line = file.read(size)
        return {
            row: {name: _unpacked(value) for name, value in answer.items()}
            for row, answer in json.loads(line)["answers"]
        }

    def _look_through(self, number: int, path: Path) -> None:
        start = 0
        with path.open("rb") as file:
            for line in file:
                head = _HEAD.match(line)
                # A line without its end was torn when its worker died, or is being written.
                if head and line.endswith(b"\n") and not line.endswith(TORN):
                    self._places.setdefault(int(head[1]), (number, start, len(line)))
                start += len(line)


def plain_or_packed(value: Any) -> Any:
    """What JSON has for a value of NumPy's; vectors of float32 are packed. Raises TypeError for other values."""
    if _is_vector(value):
        return {VECTOR: _in_base64(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"an answer holds a {type(value).__name__}, which JSON has no form for")


_to_json = json.JSONEncoder(default=plain_or_packed).encode


def _text_of(value: Any) -> str:
    """A column as JSON; a list of numbers is packed where float32 holds them exactly."""
    value = _as_vector(value) if isinstance(value, list) else value
    # JSON would look at each character again, for longer than all else takes.
    return f'{{"{VECTOR}": "{_in_base64(value)}"}}' if _is_vector(value) else _to_json(value)


def _is_vector(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.ndim == 1


def _in_base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


def _as_vector(values: list[Any]) -> Any:
    if len(values) < _FEWEST_PACKED or set(map(type, values)) != {float}:
        return values
    exact = np.array(values)
    vector = exact.astype(np.float32)
    return vector if np.array_equal(vector, exact) else values


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1 and VECTOR in value:
        return np.frombuffer(base64.b64decode(value[VECTOR]), "<f4")
    return value
