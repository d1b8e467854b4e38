from __future__ import annotations

import json
import os
import pickle
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from drumline.data import cache
from drumline.data.cache import build_cache, cache_path, open_cache
from drumline.data.tokenizers import ByteTokenizer, Ids
from drumline.errors import DataError

END = 256


class WideTokenizer(ByteTokenizer):
    """Ids that need 32 bits."""

    vocab_size = 200_000
    end_of_document = 199_999
    fingerprint = "wide"

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [ids + 100_000 for ids in super().encode_batch(texts)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "1.txt", tmp_path / "2.txt", tmp_path / "3.txt"]
    for path, text in zip(paths, ("ab", "", "é"), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


def build(files: list[Path], folder: Path, tokenizer: ByteTokenizer | None = None) -> Path:
    tokenizer = tokenizer or ByteTokenizer()
    path = cache_path(files, tokenizer, folder)
    build_cache(files, tokenizer, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_documents_end_with_the_end_of_document_id(files: list[Path], folder: Path) -> None:
    path = build(files, folder)
    tokens = open_cache(path)
    assert len(tokens) == 6
    assert tokens[0:6].tolist() == [97, 98, END, 0xC3, 0xA9, END]
    assert tokens[4:9].tolist() == [0xA9, END]
    assert tokens.document_starts.tolist() == [0, 3]  # the empty file is no document
    assert path.read_bytes() == bytes([97, 0, 98, 0, 0, 1, 0xC3, 0, 0xA9, 0, 0, 1])
    assert names(folder) == [f"{path.stem}.bin", f"{path.stem}.json"]
    header = json.loads(path.with_suffix(".json").read_text())
    assert header["tokenizer"] == ByteTokenizer().fingerprint
    assert (header["count"], header["dtype"]) == (6, "uint16")


def test_large_vocabularies_take_32_bits(files: list[Path], folder: Path) -> None:
    path = build(files, folder, WideTokenizer())
    assert open_cache(path)[0:3].tolist() == [100_097, 100_098, 199_999]
    assert path.stat().st_size == 6 * 4


def test_two_tokenizers_two_files(files: list[Path], folder: Path) -> None:
    assert build(files, folder) != build(files, folder, WideTokenizer())
    assert len(names(folder)) == 4


def test_key_follows_content_and_order_not_names(files: list[Path], folder: Path, tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    first = cache_path(files, tokenizer, folder)
    assert cache_path(files[::-1], tokenizer, folder) != first
    copy = tmp_path / "other_name.txt"
    copy.write_bytes(files[0].read_bytes())
    assert cache_path([copy, *files[1:]], tokenizer, folder) == first
    copy.write_text("aB")
    assert cache_path([copy, *files[1:]], tokenizer, folder) != first
    # The same text cut into other documents is other data.
    files[0].write_text("a")
    files[1].write_text("b")
    assert cache_path(files, tokenizer, folder) != first


def test_valid_cache_is_left_alone(files: list[Path], folder: Path) -> None:
    path = build(files, folder)
    before = path.stat()
    build(files, folder)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_text_in_many_batches_and_pieces(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"{i}.txt" for i in range(7)]
    texts = [f"document {i} " * (i * 20_000) for i in range(7)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    monkeypatch.setattr(cache, "BATCH_CHARS", 300_000)
    tokens = open_cache(build(files, folder))
    expected = b"".join(text.encode() + b"|" for text in texts if text)
    stream = tokens[0 : len(tokens)]
    assert np.where(stream == END, ord("|"), stream).astype(np.uint8).tobytes() == expected
    ends = (np.flatnonzero(stream == END) + 1).tolist()
    assert tokens.document_starts.tolist() == [0, *ends[:-1]]


@pytest.mark.parametrize("size", [0, 1, 11, 14])
def test_wrong_size_is_an_error_and_is_rebuilt(files: list[Path], folder: Path, size: int) -> None:
    path = build(files, folder)
    whole = path.read_bytes()
    path.write_bytes((whole + b"xx")[:size])
    with pytest.raises(DataError, match=f"has {size} bytes where its header says 12"):
        open_cache(path)
    build(files, folder)
    assert path.read_bytes() == whole
    assert open_cache(path)[3:5].tolist() == [0xC3, 0xA9]


@pytest.mark.parametrize(
    "header",
    ["", "{", "[]", "{}", "null", '{"format": 1, "key": "KEY", "count": 6, "dtype": "int8", "document_starts": []}'],
)
def test_damaged_header_is_an_error_and_is_rebuilt(files: list[Path], folder: Path, header: str) -> None:
    path = build(files, folder)
    header_path = path.with_suffix(".json")
    whole = header_path.read_text()
    header_path.write_text(header.replace("KEY", path.stem))
    with pytest.raises(DataError, match=r"header .* is damaged"):
        open_cache(path)
    build(files, folder)
    assert header_path.read_text() == whole


@pytest.mark.parametrize("change", [{"format": 0}, {"key": "0" * 64}])
def test_header_of_another_cache(files: list[Path], folder: Path, change: dict[str, object]) -> None:
    header_path = build(files, folder).with_suffix(".json")
    header_path.write_text(json.dumps(json.loads(header_path.read_text()) | change))
    with pytest.raises(DataError, match="another cache or format"):
        open_cache(header_path.with_suffix(".bin"))


def test_killed_between_the_two_files(files: list[Path], folder: Path) -> None:
    path = build(files, folder)
    path.with_suffix(".json").unlink()
    with pytest.raises(DataError, match="there is no tokenised text at"):
        open_cache(path)
    assert len(open_cache(build(files, folder))) == 6


def test_not_utf8_leaves_nothing(files: list[Path], folder: Path) -> None:
    files[2].write_bytes(b"ok \xff")
    with pytest.raises(DataError, match=r"3\.txt is not UTF-8 text: byte 0xff at offset 3"):
        build(files, folder)
    assert names(folder) == []


def test_no_tokens_leave_nothing(files: list[Path], folder: Path) -> None:
    class Deaf(ByteTokenizer):
        def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
            return [np.empty(0, dtype=np.int64) for _ in texts]

    for selection in (files, files[:1], files[1:2]):
        with pytest.raises(DataError, match="finds no token"):
            build(selection, folder, Deaf())
    assert names(folder) == []


def test_id_out_of_range_is_not_stored(files: list[Path], folder: Path) -> None:
    class Liar(WideTokenizer):
        vocab_size = 257

    with pytest.raises(DataError, match="gives ids 199999 to 199999, its vocab_size is 257"):
        build(files, folder, Liar())
    Liar.end_of_document = 256
    with pytest.raises(DataError, match="gives ids 100097 to 100098, its vocab_size is 257"):
        build(files, folder, Liar())
    assert names(folder) == []


def test_text_that_changes_meanwhile(files: list[Path], folder: Path) -> None:
    class Meddler(ByteTokenizer):
        def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
            files[0].write_text("longer than before")
            return super().encode_batch(texts)

    with pytest.raises(DataError, match="changed while they were tokenised"):
        build(files, folder, Meddler())
    assert names(folder) == []


def test_two_builds_of_the_same_at_once(files: list[Path], folder: Path) -> None:
    class Overtaken(ByteTokenizer):
        """While this build has its file open, another one begins and ends."""

        def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
            assert len([name for name in names(folder) if name.endswith(".tmp")]) == 1
            build(files, folder)
            return super().encode_batch(texts)

    path = build(files, folder, Overtaken())
    assert open_cache(path)[0:6].tolist() == [97, 98, END, 0xC3, 0xA9, END]
    assert names(folder) == [f"{path.stem}.bin", f"{path.stem}.json"]


def test_files_of_killed_builds_are_removed(files: list[Path], folder: Path) -> None:
    path = build(files, folder)
    key = "0" * 64
    dead, header, living, strange = (
        folder / f".{name}.tmp" for name in (f"{key}.bin.1.a", f"{path.stem}.json.7", f"{key}.bin.2.b", "notes")
    )
    for left, age_s in (dead, 7200), (header, 7200), (living, 60), (strange, 7200):
        left.write_text("half")
        os.utime(left, (time.time() - age_s,) * 2)
    build(files, folder)
    assert [name for name in names(folder) if name.endswith(".tmp")] == sorted([living.name, strange.name])


def test_folder_that_cannot_be_made(files: list[Path]) -> None:
    with pytest.raises(
        DataError, match=r"cannot write tokenised text to .*1\.txt/cache: .*GiB free.*\n.*data\.cache_dir="
    ):
        build(files, files[0] / "cache")


def test_no_space(files: list[Path], folder: Path) -> None:
    files[0].write_text("a" * 10_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(DataError, match=r"cannot write tokenised text to .*deep/cache: File too large"):
            build(files, folder)
        assert names(folder) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_token_file_is_pickled_by_path(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "long.txt").write_text("abcdefghij" * 10_000)
    tokens = open_cache(build([tmp_path / "long.txt"], folder))
    assert tokens[10:12].tolist() == [97, 98]
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert np.array_equal(copy[0 : len(copy)], tokens[0 : len(tokens)])
    assert not copy[0:5].flags.writeable


def test_token_file_is_found_from_another_folder(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tokens = open_cache(build(files, Path("cache")))
    monkeypatch.chdir("/")
    assert tokens[0:2].tolist() == [97, 98]
