"""From the text section of a recipe to training and evaluation rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.config.data import TextData
from drumline.data.cache import build_cache, cache_path, open_cache
from drumline.data.files import expand_files
from drumline.data.packing import PackedRows
from drumline.data.tokenizers import Tokenizer, load_tokenizer
from drumline.errors import DataError

Build = Callable[[Callable[[], None]], None]


@dataclass(frozen=True)
class TextSplits:
    """Rows to train on, held-out rows (None without evaluation files), and the tokenizer of both."""

    train: PackedRows
    eval: PackedRows | None
    tokenizer: Tokenizer


def load_text(config: TextData, build: Build | None = None) -> TextSplits:
    """Tokenise the files where no cache holds them yet, and give their rows.

    `build` receives the one function that writes caches, once: a caller with several ranks runs it in one of them
    while the others wait. None: it is run. Raises DataError for files that cannot be used, or that are in both splits.
    """
    tokenizer = load_tokenizer(config.tokenizer)
    splits = [expand_files(config.train, "data.train")]
    if config.eval:
        splits.append(expand_files(config.eval, "data.eval"))
        _check_disjoint(*splits)
    paths = [cache_path(files, tokenizer, config.cache_dir) for files in splits]

    def write() -> None:
        for files, path in zip(splits, paths, strict=True):
            build_cache(files, tokenizer, path)

    if build is None:
        write()
    else:
        build(write)
    rows = [PackedRows(open_cache(path), config.context) for path in paths]
    return TextSplits(rows[0], rows[1] if config.eval else None, tokenizer)


def _check_disjoint(train: Sequence[Path], held_out: Sequence[Path]) -> None:
    # By device and inode: a link under another name leaks as much as the same path.
    trained = {(path.stat().st_dev, path.stat().st_ino) for path in train}
    shared = [path for path in held_out if (path.stat().st_dev, path.stat().st_ino) in trained]
    if shared:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        raise DataError(
            f"{shared[0]}{more} is in data.train and in data.eval: the evaluation would be of text that was trained on",
            "take it out of one of the two, or make the patterns narrower",
        )
