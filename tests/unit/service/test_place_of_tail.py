"""The last lines of a file, read from its end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.service import tails
from drumline.service.tails import READ_BYTES, TAIL_BYTES, Place, as_text, place_of_tail, read_piece


def tail(path: Path, lines: int, *, is_final: bool = True) -> list[str]:
    place = place_of_tail(path, lines, is_final=is_final)
    assert not path.exists() or place.inode == path.stat().st_ino
    return [as_text(line) for line, _ in read_piece(path, place, most=1000, is_final=is_final).lines]


@pytest.mark.parametrize(
    ("text", "lines", "last"),
    [
        ("", 3, []),
        ("a\n", 3, ["a"]),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\nc\n", 3, ["a", "b", "c"]),
        ("a\nb\nhalf", 2, ["b", "half"]),
        ("\n\n\n", 2, ["", ""]),
        ("half", 1, ["half"]),
    ],
)
def test_they_are_as_many_as_were_asked_for(tmp_path: Path, text: str, lines: int, last: list[str]) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert tail(path, lines) == last


def test_half_a_line_that_will_go_on_is_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\nb\nc\nhalf")
    assert tail(path, 2, is_final=False) == ["b", "c"]


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert place_of_tail(tmp_path / "none", 5, is_final=True) == Place()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(text=st.text("ab\n", max_size=60), lines=st.integers(1, 12), size=st.integers(1, 9))
def test_they_are_those_of_the_whole_file_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, text: str, lines: int, size: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tails, "READ_BYTES", size)
        place = place_of_tail(path, lines, is_final=True)
    assert text[place.offset :].splitlines() == text.splitlines()[-lines:]


def test_of_a_large_file_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read, real = tmp_path / "log", list[int](), os.pread
    with path.open("wb") as file:
        file.truncate(2**30)  # a hole, which takes no room
        file.seek(2**30)
        file.write(b"\n" + b"line\n" * 5000)

    def counted(descriptor: int, count: int, offset: int) -> bytes:
        data = real(descriptor, count, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    place = place_of_tail(path, 5000, is_final=True)
    assert place.offset == 2**30 + 1 and sum(read) <= READ_BYTES + 1
    read.clear()
    assert place_of_tail(path, 6000, is_final=True).offset == 2**30 + 1  # whole lines, as far as is looked
    assert sum(read) <= TAIL_BYTES + 1


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("end", ["", "\n"])
def test_one_line_beyond_the_limit_is_cut_between_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int, end: str
) -> None:
    monkeypatch.setattr(tails, "TAIL_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("水" * 100 + "x" * shift + end, encoding="utf-8")
    [line] = tail(path, 1)
    assert "\ufffd" not in line and 90 < len(line.encode()) <= 100
