from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from drumline.config.recipes import recipes_folder
from drumline.data.files import expand_files, natural_key, read_pieces
from drumline.errors import DataError


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def names(files: list[Path]) -> list[str]:
    return [file.stem for file in files]


def test_order_is_natural(tmp_path: Path) -> None:
    write(tmp_path, chapter_10="a", chapter_2="b", chapter_1="c", epilogue="d")
    assert names(expand_files([f"{tmp_path}/*.txt"])) == ["chapter_1", "chapter_2", "chapter_10", "epilogue"]


@pytest.mark.parametrize("first, second", [("a1", "a01"), ("2x", "x2"), ("9/b", "10/a"), ("a", "a1")])
def test_natural_key_orders_any_two_names(first: str, second: str) -> None:
    assert natural_key(Path(first)) != natural_key(Path(second))
    ordered = sorted([Path(second), Path(first)], key=natural_key)
    assert ordered == sorted([Path(first), Path(second)], key=natural_key)
    if first[0].isdigit():
        assert ordered[0] == Path(first)


def test_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="x", b="y")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    monkeypatch.chdir(tmp_path)
    assert names(expand_files(["a.txt", "./a.txt", str(tmp_path / "a.txt"), "*.txt"])) == ["a", "b"]


def test_glob_passes_over_folders_and_hidden_files(tmp_path: Path) -> None:
    write(tmp_path, a="x")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / ".a.txt").write_text("left by an editor")
    (tmp_path / "folder.txt" / "deep.txt").write_text("y")
    assert names(expand_files([f"{tmp_path}/*.txt"])) == ["a"]
    assert names(expand_files([f"{tmp_path}/**/*.txt"])) == ["a", "deep"]


def test_name_with_a_bracket_is_a_file(tmp_path: Path) -> None:
    write(tmp_path, **{"a[1]": "x"})
    assert names(expand_files([str(tmp_path / "a[1].txt")])) == ["a[1]"]


def test_recipes_prefix() -> None:
    (file,) = expand_files(["recipes:moby_dick/chapter_1.txt"])
    assert file == recipes_folder() / "moby_dick" / "chapter_1.txt"


def test_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a="x")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_files(["~/a.txt"]) == [tmp_path / "a.txt"]


def test_missing_file_names_what_is_near(tmp_path: Path) -> None:
    write(tmp_path, chapter_1="x", other="y")
    with pytest.raises(DataError, match=r"data\.eval: there is no file '.*chaptr_1\.txt'\n.*has chapter_1\.txt$"):
        expand_files([f"{tmp_path}/chaptr_1.txt"], "data.eval")


def test_missing_folder_names_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "moby_dick").mkdir()
    with pytest.raises(DataError, match=rf"{tmp_path} has moby_dick$"):
        expand_files([f"{tmp_path}/mobydick/chapter_1.txt"])


def test_pattern_without_a_match_shows_the_folder(tmp_path: Path) -> None:
    write(tmp_path, a="x", b="x", c="x", d="x", e="x")
    with pytest.raises(DataError, match=r"no file matches '.*\*\.jsonl'\n.*has a\.txt, b\.txt, c\.txt and 2 more$"):
        expand_files([f"{tmp_path}/*.jsonl"])


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"is a folder, not a file\n  fix: name its files: '{tmp_path}/\*\.txt'"):
        expand_files([f"{tmp_path}/"])


def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        expand_files([str(tmp_path / "pipe")])


def test_name_that_the_system_refuses(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: File name too long"):
        expand_files([str(tmp_path / ("x" * 300))])


def test_all_files_empty(tmp_path: Path) -> None:
    write(tmp_path, a="", b="")
    with pytest.raises(DataError, match=r"data\.train: all 2 files are empty"):
        expand_files([f"{tmp_path}/*.txt"])
    write(tmp_path, b="x")
    assert names(expand_files([f"{tmp_path}/*.txt"])) == ["a", "b"]


def test_pieces_end_before_a_newline_or_a_space_after_a_letter(tmp_path: Path) -> None:
    write(tmp_path, a="one two\nthree four. \nfive")
    assert list(read_pieces(tmp_path / "a.txt", 10)) == ["one two", "\nthree", " four. \nfive"]


def test_text_without_such_a_place_is_cut_at_newlines_or_anywhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("海。\n山。\n", encoding="utf-8")
    assert list(read_pieces(tmp_path / "a.txt", 10)) == ["海。\n山。\n"]
    assert list(read_pieces(tmp_path / "a.txt", 5)) == ["海。\n山。", "\n"]
    (tmp_path / "a.txt").write_text("x" * 7)
    assert list(read_pieces(tmp_path / "a.txt", 3)) == ["xxx", "xxx", "x"]


@pytest.mark.parametrize("size", range(1, 40))
def test_pieces_are_the_text(tmp_path: Path, size: int) -> None:
    text = "naïve 日本 🙂\r\n" + "…" * 50 + "\n\n  end 3\n"
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(read_pieces(tmp_path / "a.txt", size))
    assert "".join(pieces) == text
    assert all(pieces)
    assert max(map(len, pieces)) <= 3 * size


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "content, offset, byte",
    [
        (b"caf\xe9 \xc3\xa9", 3, "e9"),
        ("é日🙂".encode() + b"\xff", 9, "ff"),
        ("é日".encode() + "🙂".encode()[:3], 5, "f0"),
        (b"0123456789\xe6\x97x", 10, "e6"),
    ],
)
def test_offset_of_what_is_not_utf8(tmp_path: Path, content: bytes, offset: int, byte: str, size: int) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(
        DataError, match=rf"bad\.txt is not UTF-8 text: byte 0x{byte} at offset {offset}\n.*WINDOWS-1252"
    ):
        list(read_pieces(tmp_path / "bad.txt", size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"])
def test_text_is_read_in_the_encoding_that_its_bytes_tell(tmp_path: Path, encoding: str, size: int) -> None:
    text = "a naïve café\r\n"
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert "".join(read_pieces(tmp_path / "a.txt", size)) == text


def test_utf16_that_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16")[:-1])
    with pytest.raises(DataError, match="begins as UTF-16 text, and byte 0x74 at offset 8 is none"):
        list(read_pieces(tmp_path / "a.txt"))


def test_a_compressed_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("é".encode()))
    assert list(read_pieces(tmp_path / "a.txt.gz")) == ["é"]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(1000))[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz is damaged"):
        list(read_pieces(tmp_path / "a.txt.gz"))


def test_file_that_went_away(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*gone\.txt: No such file"):
        list(read_pieces(tmp_path / "gone.txt"))
