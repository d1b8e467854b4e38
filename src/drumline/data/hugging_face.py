"""Data sets that the package datasets reads, from the hub or a local folder. The only file that imports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from drumline.config.data import HuggingFaceData
from drumline.data.files import nearest
from drumline.data.record_text import Record
from drumline.data.records import RecordSplits
from drumline.data.schema import Column, Schema, missing_columns, renamed, type_name
from drumline.data.source import ShardedStream, without_first
from drumline.errors import DataError, MissingExtra

SAVED = ("dataset_dict.json", "state.json")
"""What save_to_disk leaves in the folder of several splits, and of a single one."""
_TYPES = {
    "string": "text",
    "large_string": "text",
    "bool": "true or false",
    "int": "whole number",
    "uint": "whole number",
    "float": "number",
}
"""Beginning of the package's name of a type -> a schema's word for it."""


class HuggingFaceRows(Dataset[Record]):
    """Rows as the package gives them, under the names that data.columns gives, with their schema."""

    def __init__(self, rows: Any, schema: Schema, columns: Mapping[str, str]) -> None:
        self.rows = rows
        self.schema = schema
        self._columns = dict(columns)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content_key(self) -> str:
        """Equal for equal rows: the package's own key of the files and of what was done to them, and the names."""
        return f"{self.rows._fingerprint} {sorted(self._columns.items())}"

    def only(self, name: str) -> HuggingFaceRows:
        """The same rows with one column alone, so that what lies in the others, as images, is not opened."""
        own = self.rows.select_columns([self._columns.get(name, name)])
        return HuggingFaceRows(own, self.schema, self._columns)

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return renamed(self.rows[index], self._columns)

    def __getitems__(self, indexes: Sequence[int]) -> list[Record]:
        """Read several rows at once."""
        return [renamed(row, self._columns) for row in self.rows.__getitems__(list(indexes))]


class HuggingFaceStream(IterableDataset[Record]):
    """The same of rows that the package streams."""

    def __init__(self, rows: ShardedStream, schema: Schema, columns: Mapping[str, str]) -> None:
        self._rows = rows
        self.schema = schema
        self._columns = dict(columns)

    def shard(self, num_shards: int, index: int) -> HuggingFaceStream:
        """The part `index` of `num_shards`."""
        return HuggingFaceStream(self._rows.shard(num_shards, index), self.schema, self._columns)

    def skip(self, count: int) -> Any:
        """Leave out the first rows; NotImplemented where they cannot be skipped."""
        rest = without_first(self._rows, count)
        return NotImplemented if rest is None else HuggingFaceStream(rest, self.schema, self._columns)

    def set_epoch(self, epoch: int) -> None:
        """Tell the package, which shuffles by it."""
        self._rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[Record]:
        return (renamed(row, self._columns) for row in self._rows)


def load_datasets(config: HuggingFaceData) -> RecordSplits:
    """Open the splits that are named, with columns renamed; a stream where streaming is asked for.

    Raises DataError for a path, subset, split or column that is not there, MissingExtra without the package.
    """
    loaded = {name: _split(config, name) for name in (config.train_split, config.eval_split) if name is not None}
    rows = {name: _opened(split, config.columns, f"split {name!r} of {config.path}") for name, split in loaded.items()}
    train = rows[config.train_split]
    return RecordSplits(train, rows[config.eval_split] if config.eval_split else None, train.schema)


def _split(config: HuggingFaceData, name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "data") from None
    folder = Path(config.path).expanduser()
    try:
        if any((folder / saved).is_file() for saved in SAVED):
            return _saved(datasets.load_from_disk(str(folder)), config, name)
        path = str(folder) if folder.exists() else config.path
        return datasets.load_dataset(path, name=config.subset, split=name, streaming=config.streaming)
    # Whatever is wrong with the path, the subset, the split or the network: it raises a dozen kinds.
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        near = f"there is no folder of this name here ({nearest(folder)}); " if not folder.exists() else ""
        raise DataError(
            f"data.path: the package datasets cannot open split {name!r} of {config.path}: {_first_line(error)}",
            f"{near}check data.path, data.subset and data.{_setting(config, name)}",
        ) from error


def _saved(found: Any, config: HuggingFaceData, name: str) -> Any:
    """One split of what save_to_disk wrote; a folder of a single split has no names, and is what is trained on."""
    if isinstance(found, Mapping):
        if name not in found:
            raise DataError(
                f"{config.path} has no split {name!r}; there are {', '.join(found)}",
                f"name one of them: --set data.{_setting(config, name)}={next(iter(found))}",
            )
        found = found[name]
    elif name != config.train_split:
        raise DataError(
            f"{config.path} was saved as a single split, so there is no {name!r}",
            "save a DatasetDict with both splits, or leave data.eval_split out",
        )
    return found.to_iterable_dataset(min(64, max(1, len(found)))) if config.streaming else found


def _setting(config: HuggingFaceData, name: str) -> str:
    return "train_split" if name == config.train_split else "eval_split"


def _opened(split: Any, columns: Mapping[str, str], where: str) -> HuggingFaceRows | HuggingFaceStream:
    known = _columns(split)
    if absent := {name: own for name, own in columns.items() if own not in known}:
        raise missing_columns(absent, list(known), where)
    num_rows = len(split) if hasattr(split, "__len__") else None
    schema = Schema({name: _column(feature, num_rows) for name, feature in known.items()}, num_rows).renamed(columns)
    if num_rows is None:
        return HuggingFaceStream(ShardedStream(split), schema, columns)
    return HuggingFaceRows(split, schema, columns)


def _columns(split: Any) -> dict[str, Any]:
    """The package's type of each column; of a stream that does not know them, the values of its first row."""
    return dict(split.features if split.features is not None else next(iter(split), {}))


def _column(feature: Any, num_rows: int | None) -> Column:
    inner = getattr(feature, "feature", feature)  # of a list
    names = getattr(inner, "names", None)
    return Column({_type_of(feature): num_rows or 0}, names=tuple(names) if names else None)


def _type_of(feature: Any) -> str:
    """A schema's word for a type of the package's, or for the type of a plain value."""
    kind = type(feature).__name__
    if kind == "Value":
        dtype = str(feature.dtype)
        return next((name for start, name in _TYPES.items() if dtype.startswith(start)), dtype)
    return {"ClassLabel": "whole number", "List": "list", "LargeList": "list"}.get(kind) or type_name(feature)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
