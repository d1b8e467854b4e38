"""The encoding of a text file, told from its bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from drumline.data.text_encoding import decoded, encoding_of, encoding_of_chunks, name_of

WESTERN = "Das Café in der Straße \u2013 „naïve“ Gäste, 5 €. "
OTHERS = {
    "cyrillic": "Привет, мир, как дела".encode("cp1251"),
    "chinese": "今天天气很好我们去公园".encode("gbk"),
    "japanese": "こんにちは世界、元気ですか".encode("shift-jis"),
    "korean": "안녕하세요 세계 여러분".encode("euc-kr"),
}


def told(content: bytes, size: int = 1 << 20) -> str:
    return encoding_of_chunks(iter([content[i : i + size] for i in range(0, len(content), size)]))


@pytest.mark.parametrize("size", [8, 13, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "cp1252"])
def test_each_encoding_is_told_whatever_the_pieces(encoding: str, size: int) -> None:
    content = (WESTERN * 20).encode(encoding)
    codec = told(content, size)
    assert content.decode(codec) == WESTERN * 20
    assert decoded(content) == WESTERN * 20


def test_ascii_and_nothing_are_utf_8() -> None:
    assert {told(b""), told(b"a" * 100), told(b"x\0y"), told(b"a\0" + bytes(100) + b"b" * 99)} == {"utf-8-sig"}


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "content",
    [
        "é".encode() + b" caf\xe9",
        b"caf\xe9 " + "é".encode(),
        "日本".encode()[:-1],
        b"broken \xff",
        b"\x81 \xe9",
    ],
)
def test_a_file_that_is_neither_all_one_nor_all_the_other_is_read_as_utf_8(content: bytes, size: int) -> None:
    assert told(content, size) == "utf-8-sig"
    with pytest.raises(UnicodeDecodeError):
        decoded(content)


@pytest.mark.parametrize("script", OTHERS)
def test_another_script_in_single_bytes_is_not_taken_for_western_text(script: str) -> None:
    content = b'{"text": "' + OTHERS[script] + b'"}\n'
    assert told(content) == "utf-8-sig"


def test_a_file_is_looked_at_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(WESTERN.encode("cp1252")))
    assert name_of(encoding_of(path)) == "Windows-1252"
    path.write_bytes(gzip.compress(WESTERN.encode("utf-16")))
    assert name_of(encoding_of(path)) == "UTF-16"
