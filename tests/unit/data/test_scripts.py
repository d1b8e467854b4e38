"""The script that most letters of a text are of."""

from __future__ import annotations

import pytest

from drumline.data.scripts import NONE, script_of


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Call me Ishmael.", "Latin"),
        ("Łódź, Øresund \u2013 naïve", "Latin"),
        ("Việt Nam", "Latin"),
        ("Καλημέρα κόσμε", "Greek"),
        ("Привет, мир! ok", "Cyrillic"),
        ("שלום עולם", "Hebrew"),
        ("مرحبا بالعالم", "Arabic"),
        ("नमस्ते दुनिया", "Devanagari"),
        ("สวัสดีชาวโลก", "Thai"),
        ("你好\uff0c世界", "Han"),
        ("東京へ行きました", "Kana"),
        ("안녕하세요 세계", "Hangul"),
        ("გამარჯობა", "Georgian"),
        ("", NONE),
        ("12 + 3 = 15", NONE),
        ("🙂🙂 → …", NONE),
    ],
)
def test_script(text: str, script: str) -> None:
    assert script_of(text) == script


def test_only_the_beginning_counts() -> None:
    assert script_of("é" + "a" * 3000 + "я" * 100_000) == "Latin"


def test_half_a_character_is_no_letter() -> None:
    assert script_of("\ud800я") == "Cyrillic"
