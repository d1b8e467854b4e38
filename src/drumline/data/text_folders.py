"""Texts from one folder a class, each file one text, read when it is asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from drumline.config.data import TextFolders
from drumline.config.recipes import expand_path
from drumline.data.files import check_disjoint, natural_key, nearest, reading
from drumline.data.mixture import mixed, sources_of
from drumline.data.record_text import Record
from drumline.data.records import RecordSplits
from drumline.data.schema import Column, Schema, merged, renamed
from drumline.data.text_encoding import decoded
from drumline.errors import DataError

MAX_READ = 100_000
"""Files of a source that are read at start; of further ones only the size is looked at, as reading takes minutes."""
_log = logging.getLogger("drumline")


class TextFolderRows(Dataset[Record]):
    """Records {"text": content, "label": folder name} of listed files, renamed as data.columns says."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[str], num_bad: int, columns: Mapping[str, str]) -> None:
        # Blocks of bytes: a list of a million paths would be copied into every loader process, count by count.
        self._paths = np.array([os.fsencode(path) for path in paths])
        self._classes = sorted(set(labels))
        self._labels = np.array([self._classes.index(label) for label in labels])
        self._columns = dict(columns)
        texts, classes = Column({"text": len(paths)}), Column({"text": len(paths)}, tuple(self._classes))
        self.schema = Schema({"text": texts, "label": classes}, len(paths), num_bad).renamed(columns)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        text = read_text(Path(os.fsdecode(self._paths[index])))
        return renamed({"text": text, "label": self._classes[self._labels[index]]}, self._columns)

    def __getitems__(self, indexes: Sequence[int]) -> list[Record]:
        """Read several rows."""
        return [self[index] for index in indexes]


def load_text_folders(config: TextFolders) -> RecordSplits:
    """List the files of each class folder, below further folders too, and give their texts.

    Files that are empty or no text are left out with a warning. Raises DataError for a folder that is absent, or has
    no class folder or no text, and for one that is in both splits.
    """
    sources = sources_of(config.train, "data.train")
    folders = [[_folder(path, source.setting) for path in source.paths] for source in sources]
    held_out = [_folder(path, "data.eval") for path in config.eval]
    check_disjoint([folder for part in folders for folder in part], held_out)
    parts = [
        (_rows(part, source.setting, config.columns), source.weight)
        for part, source in zip(folders, sources, strict=True)
    ]
    schema = merged([rows.schema for rows, _ in parts])
    return RecordSplits(
        mixed(parts, schema), _rows(held_out, "data.eval", config.columns) if held_out else None, schema
    )


def read_text(path: Path) -> str:
    """A whole file's text, in the encoding that its bytes tell. Raises DataError where it has none, or is not there."""
    try:
        with reading(path):
            return decoded(path.read_bytes())
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}", "convert it, or leave it out") from None


def _folder(name: str, setting: str) -> Path:
    path = Path(expand_path(name)).expanduser()
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else f"does not exist: {nearest(path)}"
        raise DataError(f"{setting}: {name!r} {what}", "name a folder that has one folder a class")
    return path.absolute()


def _rows(folders: Sequence[Path], setting: str, columns: Mapping[str, str]) -> TextFolderRows:
    paths: list[Path] = []
    labels: list[str] = []
    bad: list[str] = []
    for folder in folders:
        classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        if not classes:
            raise DataError(
                f"{setting}: {folder} holds no folders", "put the texts of each class into a folder of its own"
            )
        for name in classes:
            for path in _files(name):
                problem = _problem(path, only_size=len(paths) >= MAX_READ)
                if problem:
                    bad.append(problem)
                else:
                    paths.append(path)
                    labels.append(name.name)
    if bad:
        more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
        _log.warning("%s: files are left out: %s%s", setting, bad[0], more)
    if not paths:
        named = ", ".join(map(str, folders))
        raise DataError(
            f"{setting}: no text in {named}",
            f"put text files into the class folders; {bad[0]}" if bad else "put text files into the class folders",
        )
    return TextFolderRows(paths, labels, len(bad), columns)


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(found, key=natural_key)


def _problem(path: Path, *, only_size: bool) -> str | None:
    try:
        filled = path.stat().st_size if only_size else read_text(path).strip()
        return None if filled else f"{path} is empty"
    except DataError as error:
        return error.problem
