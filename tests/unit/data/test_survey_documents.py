"""A look through tokenised text files."""

from __future__ import annotations

from pathlib import Path

from drumline.data.cache import TokenFile, build_cache, cache_path, open_cache
from drumline.data.survey_documents import LOOKED_AT, look_through_documents
from drumline.data.tokenizers import ByteTokenizer


def tokenised(folder: Path, *texts: str) -> TokenFile:
    folder.mkdir()
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"{number}.txt")
        files[-1].write_text(text)
    path = cache_path(files, ByteTokenizer(), folder)
    build_cache(files, ByteTokenizer(), path)
    return open_cache(path)


def test_documents_are_counted_and_compared_over_all_files(tmp_path: Path) -> None:
    long = "x" * LOOKED_AT
    first = tokenised(tmp_path / "a", "one", "two two", long + "a", "one")
    second = tokenised(tmp_path / "b", "four", "two two", long + "b", long)
    found = look_through_documents([first, second])
    assert (found.num_rows, found.whole, found.num_empty) == (8, True, 0)
    same = found.exact.repeated()
    assert (same.num_rows, same.examples) == (3, ((3, 0), (5, 1), (6, 2))), "of long ones the beginning and the length"
    assert found.lengths is not None
    assert found.lengths.total == 3 + 7 + 4097 + 3 + 4 + 7 + 4097 + 4096
    assert (found.lengths.shortest, found.lengths.longest, found.lengths.num_cut) == (3, 4097, 0)
    held_out = look_through_documents([tokenised(tmp_path / "c", "two two", "five")])
    assert held_out.exact.found_in(found.exact).examples == ((0, 1),)


def test_time_is_bounded(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    file = tokenised(tmp_path / "a", *map(str, range(10)))
    found = look_through_documents([file], limit_s=3.5, clock=lambda: float(next(ticks)))
    assert (found.num_seen, found.num_rows) == (4, 10)
