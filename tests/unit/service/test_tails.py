"""Files that grow: every line once, whole, from wherever a reader was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.service.tails import READ_BYTES, RECORD_BYTES, Place, as_record, as_text, read_piece, whole_characters

BEGINNING = Place()


def lines_of(
    path: Path, place: Place = BEGINNING, *, most: int = 100, is_final: bool = False
) -> tuple[list[str], Place]:
    piece = read_piece(path, place, most=most, is_final=is_final)
    return [as_text(line) for line, _ in piece.lines], piece.place


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntw")
    lines, place = lines_of(path)
    assert lines == ["one"] and place.offset == 4
    path.write_text("one\ntwo\n")
    assert lines_of(path, place)[0] == ["two"]


def test_half_a_line_is_one_when_nothing_more_will_come(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntw")
    piece = read_piece(path, Place(), most=10, is_final=True)
    assert [as_text(line) for line, _ in piece.lines] == ["one", "tw"] and piece.at_end


def test_a_piece_has_as_many_lines_as_are_wanted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("1\n2\n3\n4\n5")
    found, place, pieces = [], Place(), 0
    while True:
        piece = read_piece(path, place, most=2, is_final=True)
        found += [as_text(line) for line, _ in piece.lines]
        place, pieces = piece.place, pieces + 1
        if piece.at_end:
            break
    assert found == ["1", "2", "3", "4", "5"] and pieces == 3


def test_each_line_has_the_place_after_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\nbb\nccc\n")
    places = [place for _, place in read_piece(path, Place(), most=10, is_final=False).lines]
    assert [place.offset for place in places] == [2, 5, 9]
    assert lines_of(path, places[0])[0] == ["bb", "ccc"] and lines_of(path, places[2])[0] == []


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert read_piece(tmp_path / "none", Place(7), most=5, is_final=True).place == Place(7)


@pytest.mark.parametrize("is_shorter", [True, False])
def test_a_file_that_began_anew_is_read_from_its_beginning(tmp_path: Path, is_shorter: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("old 1\nold 2\n")
    _, place = lines_of(path)
    other = tmp_path / "other"
    other.write_text("new\n" if is_shorter else "new 1\nnew 2\nnew 3\n")
    other.replace(path)
    piece = read_piece(path, place, most=10, is_final=False)
    assert piece.is_rewritten and as_text(piece.lines[0][0]).startswith("new")
    assert read_piece(path, Place(99), most=10, is_final=False).is_rewritten


def test_a_line_without_end_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (READ_BYTES + 10))
    lines, place = lines_of(path)
    assert [len(line) for line in lines] == [READ_BYTES]
    assert lines_of(path, place)[0] == []


@pytest.mark.parametrize("letter", ["é", "水", "🚀"])
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_no_piece_begins_or_ends_within_a_character(tmp_path: Path, letter: str, shift: int) -> None:
    path = tmp_path / "log"
    text = "x" * shift + letter * (READ_BYTES // 2)
    path.write_text(text, encoding="utf-8")
    told, place = "", Place()
    while True:
        piece = read_piece(path, place, most=10, is_final=True)
        told, place = told + "".join(as_text(line) for line, _ in piece.lines), piece.place
        if piece.at_end:
            break
    assert told == text


@pytest.mark.parametrize(
    ("data", "whole"),
    [(b"", 0), (b"ab", 2), (b"a\xc3", 1), (b"\xe6\xb0", 0), (b"a\xf0\x9f\x9a", 1), (b"\x80" * 9, 9), (b"\xc3", 0)],
)
def test_bytes_are_whole_characters_but_for_their_end(data: bytes, whole: int) -> None:
    assert whole_characters(data) == whole


@pytest.mark.parametrize("is_final", [True, False])
def test_a_long_record_is_told_whole(tmp_path: Path, is_final: bool) -> None:
    path = tmp_path / "metrics.jsonl"
    long = {"text": "x" * 2 * READ_BYTES}
    path.write_text(f'{{"step": 1}}\n{json.dumps(long)}\n{{"step": 3}}\n')
    records, place = [], Place()
    while True:
        piece = read_piece(path, place, most=10, is_final=is_final, longest=RECORD_BYTES)
        records += [as_record(line) for line, _ in piece.lines]
        place = piece.place
        if piece.at_end:
            break
    assert records == [{"step": 1}, long, {"step": 3}]


def test_half_a_long_record_waits_and_one_beyond_the_limit_does_not_stop_those_after_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("x" * (READ_BYTES + 9))
    piece = read_piece(path, Place(), most=10, is_final=False, longest=RECORD_BYTES)
    assert piece.lines == () and piece.at_end
    path.write_text("x" * (READ_BYTES + 9) + '\n{"step": 2}\n')
    records, place = [], Place()
    while True:
        piece = read_piece(path, place, most=10, is_final=False, longest=READ_BYTES + 5)
        records += [as_record(line) for line, _ in piece.lines]
        place = piece.place
        if piece.at_end:
            break
    assert records == [None, None, {"step": 2}]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden\n")
    (tmp_path / "log").symlink_to(tmp_path / "secret")
    assert lines_of(tmp_path / "log")[0] == []


@pytest.mark.parametrize("text", ["", None, "x", "1:2:3", "-1", "1:", "\u0663", "9" * 30, "1.5"])
def test_what_is_no_place_is_the_beginning(text: str | None) -> None:
    assert Place.parse(text) == Place()


def test_a_place_is_read_back() -> None:
    assert Place.parse(str(Place(12, 34))) == Place(12, 34) and Place.parse("12") == Place(12)


def test_records_have_no_numbers_that_json_lacks() -> None:
    assert as_record(b'{"loss": NaN, "all": [Infinity, 1.5]}\n') == {"loss": None, "all": [None, 1.5]}
    assert as_record(b'{"a": 1\x00\n') is None
    assert as_record(b"[1]\n") is None and as_record(b"no\n") is None


@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    parts=st.lists(st.binary(max_size=12).filter(lambda part: b"\r" not in part), min_size=1, max_size=12),
    most=st.integers(1, 4),
)
def test_however_it_grows_every_byte_is_told_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], most: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    told, place = b"", Place()
    for number in range(len(parts) + 1):
        path.write_bytes(b"".join(parts[:number]))
        is_final = number == len(parts)
        while True:
            piece = read_piece(path, place, most=most, is_final=is_final)
            told, place = told + b"".join(line for line, _ in piece.lines), piece.place
            if piece.at_end:
                break
    assert told == b"".join(parts)
