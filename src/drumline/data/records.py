"""From the records section of a recipe to training and evaluation rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.config.data import RecordData
from drumline.data.files import check_disjoint, expand_files
from drumline.data.mixture import mixed, sources_of
from drumline.data.record_cache import Found, RecordRows, build_records, open_records, records_folder
from drumline.data.schema import Schema, merged, missing_columns
from drumline.errors import DataError

Build = Callable[[Callable[[], None]], None]
_log = logging.getLogger("drumline")


@dataclass(frozen=True)
class RecordSplits:
    """Records to train on and held-out ones (None where none are named), both with a `schema`; of a stream, None."""

    train: Any
    eval: Any | None
    schema: Schema
    """Of the training data, under the names that data.columns gives."""


def load_records(config: RecordData, required: Sequence[str], build: Build | None = None) -> RecordSplits:
    """Read the files where no cache holds their rows yet, and give the rows.

    required: names that each row must have a value for, as the task calls them; data.columns maps them. `build`: see
    load_text. Raises DataError for files that cannot be used, too many bad rows, or a column that no row has.
    """
    own = [config.columns.get(name, name) for name in required]
    sources = sources_of(config.train, "data.train")
    splits = [expand_files(source.paths, source.setting, "*.jsonl") for source in sources]
    settings = [source.setting for source in sources]
    if config.eval:
        held_out = expand_files(config.eval, "data.eval", "*.jsonl")
        check_disjoint([file for files in splits for file in files], held_out)
        splits.append(held_out)
        settings.append("data.eval")
    folders = [records_folder(files, own, config.cache_dir) for files in splits]

    def write() -> None:
        for files, folder in zip(splits, folders, strict=True):
            build_records(files, own, folder)

    if build is None:
        write()
    else:
        build(write)
    rows = [
        _opened(config, required, files, folder, setting)
        for files, folder, setting in zip(splits, folders, settings, strict=True)
    ]
    schema = merged([part.schema for part in rows[: len(sources)]])
    parts = [(part, source.weight) for part, source in zip(rows, sources, strict=False)]
    return RecordSplits(mixed(parts, schema), rows[-1] if config.eval else None, schema)


def _opened(
    config: RecordData, required: Sequence[str], files: Sequence[Path], folder: Path, setting: str
) -> RecordRows:
    """The rows of one cache, or the error for what is wrong with them."""
    rows, found = open_records(folder, config.columns)
    # What is named in data.columns is meant to be there, also where the task can do without it.
    names = {**{name: name for name in required}, **config.columns}
    absent = {name: own for name, own in names.items() if not found.seen.get(own)}
    if absent and found.seen:
        raise missing_columns(absent, list(found.seen), setting)
    total = found.num_rows + found.num_bad
    if not total:
        raise DataError(f"{setting}: there is no row in {len(files)} files", f"name files with rows in {setting}")
    if found.num_bad:
        _check_bad(config, found, files, setting, rows.schema.bad_rows[0])
    return rows


def _check_bad(config: RecordData, found: Found, files: Sequence[Path], setting: str, listed: Path) -> None:
    """Refuse bad rows where the settings say so; else say how many were left out, and where they are listed."""
    assert found.first_bad is not None
    file, line, problem = found.first_bad
    total = found.num_rows + found.num_bad
    what = (
        f"{setting}: {found.num_bad:,} of {total:,} rows cannot be read; the first is {files[file]}:{line}: {problem}"
    )
    if config.bad_rows == "stop":
        raise DataError(
            what, f"correct them, all are listed in {listed}; or leave them out: --set data.bad_rows=set_aside"
        )
    if found.num_bad >= config.max_bad_fraction * total or not found.num_rows:
        fraction = min(1.0, round(found.num_bad / total + 0.01, 2))
        raise DataError(
            what,
            f"see whether the files are what they should be: all bad rows are listed in {listed}"
            + (f"; to leave out so many: --set data.max_bad_fraction={fraction}" if found.num_rows else ""),
        )
    _log.warning("%s; left out, all are listed in %s", what, listed)
