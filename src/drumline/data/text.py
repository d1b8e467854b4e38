"""From the text section of a recipe to training and evaluation rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drumline.config.data import TextData
from drumline.data.cache import build_cache, cache_path, open_cache
from drumline.data.files import check_disjoint, expand_files
from drumline.data.mixture import Mixture, mixed, sources_of
from drumline.data.packing import PackedRows
from drumline.data.tokenizers import Tokenizer, load_tokenizer

Build = Callable[[Callable[[], None]], None]


@dataclass(frozen=True)
class TextSplits:
    """Rows to train on, held-out rows (None without evaluation files), and the tokenizer of both."""

    train: PackedRows | Mixture
    eval: PackedRows | None
    tokenizer: Tokenizer


def load_text(config: TextData, build: Build | None = None, tokenizer: Tokenizer | None = None) -> TextSplits:
    """Tokenise the files where no cache holds them yet, and give their rows.

    `build` receives the one function that writes caches, once: a caller with several ranks runs it in one of them
    while the others wait. None: it is run. tokenizer: None takes the one that the section names. Raises DataError for
    files that cannot be used, or that are in both splits.
    """
    tokenizer = tokenizer or load_tokenizer(config.tokenizer or "byte")
    sources = sources_of(config.train, "data.train")
    splits = [expand_files(source.paths, source.setting) for source in sources]
    if config.eval:
        held_out = expand_files(config.eval, "data.eval")
        check_disjoint([file for files in splits for file in files], held_out)
        splits.append(held_out)
    paths = [cache_path(files, tokenizer, config.cache_dir) for files in splits]

    def write() -> None:
        for files, path in zip(splits, paths, strict=True):
            build_cache(files, tokenizer, path)

    if build is None:
        write()
    else:
        build(write)
    rows = [PackedRows(open_cache(path), config.context) for path in paths]
    train = mixed([(part, source.weight) for part, source in zip(rows, sources, strict=False)])
    return TextSplits(train, rows[-1] if config.eval else None, tokenizer)
