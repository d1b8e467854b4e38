"""The rows of the files that a prediction run is given, good or bad, in their order."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

from drumline.config.inference import RowsConfig
from drumline.config.recipes import expand_path
from drumline.data.files import natural_key, nearest, reading
from drumline.data.record_files import ENDINGS, is_table, read_rows
from drumline.data.record_table import find_cell_types
from drumline.data.record_text import BadRow, Numbered, Record, open_text
from drumline.errors import DataError
from drumline.infer.records import Row
from drumline.infer.row_sources import content_hash
from drumline.infer.rows import FileRow

_SETTING = "rows.files"


def read_files(config: RowsConfig) -> Iterator[Row]:
    """Yield each row of the files, at most `limit`; what cannot be read is a row with a problem.

    Raises DataError for a name without a file, and for a file that is damaged as a whole or of no known form.
    """
    found = expand_rows(config)
    tables = [file for file in found if file.is_file() and _is_rows(file) and is_table(file)]
    cell_types = find_cell_types([file for file in tables if file.stat().st_size])
    parts = ((file, row) for file in found for row in _rows_of_file(file, cell_types))
    for number, (file, (line, row)) in enumerate(islice(parts, config.limit)):
        where = f"{file.name}, line {line}: " if len(found) > 1 else f"line {line}: "
        if isinstance(row, BadRow):
            yield FileRow(number, {}, where + row.problem, where)
        else:
            yield FileRow(number, row, None, where)


def sources_of(config: RowsConfig, *, with_content: bool = False) -> list[dict[str, Any]]:
    """What tells whether the files are those that they were: path, size in bytes and time of change of each.

    with_content: a hash of each file too, null for images: to read all of them would take as long as the run.
    """
    sources: list[dict[str, Any]] = []
    for path in expand_rows(config):
        with reading(path):
            is_images = path.is_dir()
            for file in images_of(path) if is_images else [path]:
                found = file.stat()
                source: dict[str, Any] = {
                    "path": str(file.absolute()),
                    "size": found.st_size,
                    "mtime_ns": found.st_mtime_ns,
                }
                if with_content:
                    source["sha256"] = None if is_images else content_hash(file)
                sources.append(source)
    return sources


def expand_rows(config: RowsConfig) -> list[Path]:
    """The files of rows, and folders of images, that the settings name. Raises DataError for a name without one."""
    found: list[Path] = []
    for pattern in config.files:
        path = Path(expand_path(pattern)).expanduser()
        if path.is_dir():
            found += _of_folder(path)
        elif path.is_file():
            found.append(path)
        else:
            # Not Path.glob: it would take hidden files, which editors leave behind.
            names = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
            matches = sorted((match for match in names if match.is_file()), key=natural_key)
            if not matches:
                missing = "no file matches" if glob.has_magic(pattern) else "there is no file"
                raise DataError(f"{_SETTING}: {missing} {pattern!r}", f"correct the name: {nearest(path)}")
            found += matches
    return found


def images_of(folder: Path) -> list[Path]:
    """The images in a folder and in those below it, in natural order; hidden ones are passed over."""
    from drumline.data.image_folders import SUFFIXES

    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(parent, name)
            for name in names
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 (per image)
        ]
    return sorted(found, key=natural_key)


def _of_folder(folder: Path) -> list[Path]:
    with reading(folder):
        files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    rows = sorted((file for file in files if _is_rows(file) or _is_text(file)), key=natural_key)
    if rows:
        return rows
    if images_of(folder):
        return [folder]
    raise DataError(
        f"{_SETTING}: the folder {folder} holds neither rows nor images",
        f"name a folder of images, or of files that end in {', '.join(ENDINGS)} or .txt",
    )


def _rows_of_file(path: Path, cell_types: Mapping[str, type]) -> Iterator[Numbered]:
    if path.is_dir():
        yield from map(Numbered, count(1), _image_rows(path))
    elif _is_text(path):
        yield from map(Numbered, count(1), _text_rows(path))
    elif path.stat().st_size or not (_is_rows(path) and is_table(path)):
        yield from read_rows(path, cell_types)


def _text_rows(path: Path) -> Iterator[Record]:
    """A row a line, an empty one too, so that the answers stand beside their lines."""
    with open_text(path, newline="\n") as text:
        for line in text:
            yield {"text": line.rstrip("\r\n")}


def _image_rows(folder: Path) -> Iterator[Record]:
    for image in images_of(folder):
        inside = image.relative_to(folder).parts
        row = {"path": str(image)}
        yield row | {"label": inside[0]} if len(inside) > 1 else row


def _is_rows(path: Path) -> bool:
    endings = [ending.lower() for ending in path.suffixes]
    return endings[-1:] == [".parquet"] or next((e for e in reversed(endings) if e != ".gz"), "") in ENDINGS


def _is_text(path: Path) -> bool:
    endings = [ending.lower() for ending in path.suffixes]
    return endings[-1:] == [".txt"] or endings[-2:] == [".txt", ".gz"]
