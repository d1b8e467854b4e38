"""The first rows of whatever somebody names as data, and what kind of data it is by its names."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from drumline.config.data import HuggingFaceData, TextFolders
from drumline.config.recipes import expand_path
from drumline.data.files import expand_files, nearest
from drumline.data.hugging_face import SAVED, load_datasets
from drumline.data.record_files import ENDINGS, ending_of, read_rows
from drumline.data.text_folders import load_text_folders
from drumline.errors import DataError

MOST = 2000
"""Rows that are looked at."""
TEXT_ENDINGS = (".txt", ".text", ".md")
ABOUT = ("README", "LICENSE")
"""Files of a folder that tell about it."""
_EVAL_SPLITS = ("validation", "valid", "dev", "eval", "test")

Record = dict[str, Any]


@dataclass
class Rows:
    """Data by its kind, as a data section names it."""

    kind: str
    source: list[str]
    records: list[Record] = field(default_factory=list)
    num_rows: int = 0
    """About, where there are more than were looked at."""
    files: list[str] = field(default_factory=list)
    eval_split: str | None = None


def first_rows(paths: Sequence[str], task: str | None) -> Rows:
    """The kind of what these paths, globs or names are, and its first rows. Raises DataError where there is none."""
    source = [inner for path in paths for inner in within(path, task)]
    endings = {ending(path) for path in source}
    if len(source) == 1 and endings == {""}:
        folder = Path(expand_path(source[0])).expanduser()
        if folder.is_dir() and not any((folder / name).is_file() for name in SAVED):
            return of_class_folders(source)
        return of_datasets(source)
    if endings <= set(TEXT_ENDINGS):
        return Rows("text", source, files=[str(file) for file in expand_files(source, "--data")])
    if endings <= set(ENDINGS):
        return of_records(source)
    raise DataError(
        f"--data names files of unlike kinds: {', '.join(sorted(name or 'no ending' for name in endings))}",
        f"name text files ({', '.join(TEXT_ENDINGS)}), or files of rows ({', '.join(ENDINGS)})",
    )


def within(path: str, task: str | None) -> list[str]:
    """A path as it is; in place of a plain folder globs of the files in it that can be read."""
    folder = Path(expand_path(path)).expanduser()
    if not folder.is_dir() or any((folder / name).is_file() for name in SAVED):
        return [path]
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.stem.upper().startswith(ABOUT))
    found = sorted({file.suffix.lower() for file in files})
    rows = [ending for ending in found if ending in ENDINGS]
    texts = [str(file) for file in files if file.suffix.lower() in TEXT_ENDINGS]
    if not (rows or texts) or (task == "classification" and not rows):
        return [path]
    return [f"{path.rstrip('/')}/*{ending}" for ending in rows] or texts


def ending(path: str) -> str:
    """The ending that says what a file or the files of a glob are; empty for a folder or the name of a data set."""
    expanded = Path(expand_path(path)).expanduser()
    name = expanded.name.lower()
    if expanded.is_dir():
        return ""
    if glob.has_magic(path) or expanded.is_file() or name.endswith((*ENDINGS, *TEXT_ENDINGS, ".gz")):
        return expanded.suffix.lower() if expanded.suffix.lower() in TEXT_ENDINGS else ending_of(expanded)
    if name.count(".") or path.count("/") > 1:
        raise DataError(f"--data: there is no file {path!r}", f"correct the name: {nearest(expanded)}")
    return ""


def of_records(source: list[str]) -> Rows:
    """The first rows of files of rows, of each of several some."""
    files = expand_files(source, "--data", "*.jsonl")
    each = max(1, MOST // len(files))
    records: list[Record] = []
    sizes, read = 0, 0
    complete = True
    for file in files[:MOST]:
        rows = iter(read_rows(file, {}))
        found = [row for _, row in islice(rows, each) if isinstance(row, dict)]
        complete &= next(rows, None) is None
        records += found
        read += file.stat().st_size
        sizes += sum(len(json.dumps(record, default=str)) for record in found)
    if not records:
        raise DataError(f"there is no row in {len(files)} files", "name files with rows in --data")
    records = as_numbers(records) if any(ending_of(file) in (".csv", ".tsv") for file in files) else records
    total = sum(file.stat().st_size for file in files)
    if complete and len(files) <= MOST:
        return Rows("records", source, records, len(records), [str(file) for file in files])
    return Rows("records", source, records, round(total * len(records) / max(1, sizes)), [str(file) for file in files])


def as_numbers(records: list[Record]) -> list[Record]:
    """Cells of tables as numbers, in columns where all are; in place."""
    for name in {name for record in records for name in record}:
        for kind in (int, float):
            try:
                cells = [None if record.get(name) is None else kind(record[name]) for record in records]
            except (TypeError, ValueError):
                continue
            for record, cell in zip(records, cells, strict=True):
                record[name] = cell
            break
    return records


def of_class_folders(source: list[str]) -> Rows:
    """Texts from one folder a class, from all over them."""
    rows = load_text_folders(TextFolders(train=list(source))).train
    return Rows("text_folders", source, list(spread(rows)), len(rows))


def of_datasets(source: list[str]) -> Rows:
    """Rows of a saved data set, or of one on the hub; the split `train`, and one that looks like held-out rows."""
    rows = load_datasets(HuggingFaceData(path=source[0])).train
    found = Rows("datasets", source, list(spread(rows)), len(rows))
    for name in _EVAL_SPLITS:
        try:
            load_datasets(HuggingFaceData(path=source[0], train_split=name))
        except DataError:
            continue
        found.eval_split = name
        break
    return found


def spread(rows: Any) -> Iterator[Record]:
    """Some rows from all over a data set."""
    count = min(MOST, len(rows))
    return (rows[place * len(rows) // count] for place in range(count))
