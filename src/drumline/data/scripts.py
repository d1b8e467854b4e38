"""The script that most letters of a text are of: coarse, by blocks of Unicode; no guess at a language."""

from __future__ import annotations

import numpy as np

LOOKED_AT = 2000
"""Characters at the beginning of a text that are counted."""
NONE = "no letters"
# Where a block begins, and what it is called; everything up to the next beginning. "" counts for nothing.
_BLOCKS: tuple[tuple[int, str], ...] = (
    (0x0000, ""),
    (0x0041, "Latin"),
    (0x005B, ""),
    (0x0061, "Latin"),
    (0x007B, ""),
    (0x00C0, "Latin"),
    (0x02B0, ""),
    (0x0370, "Greek"),
    (0x0400, "Cyrillic"),
    (0x0530, "Armenian"),
    (0x0590, "Hebrew"),
    (0x0600, "Arabic"),
    (0x0700, "other"),
    (0x0750, "Arabic"),
    (0x0780, "other"),
    (0x08A0, "Arabic"),
    (0x0900, "Devanagari"),
    (0x0980, "Bengali"),
    (0x0A00, "other Indic"),
    (0x0E00, "Thai"),
    (0x0E80, "other"),
    (0x10A0, "Georgian"),
    (0x1100, "Hangul"),
    (0x1200, "Ethiopic"),
    (0x13A0, "other"),
    (0x1E00, "Latin"),
    (0x1F00, "Greek"),
    (0x2000, ""),
    (0x2C00, "other"),
    (0x2E00, ""),
    (0x3040, "Kana"),
    (0x3100, "other"),
    (0x3130, "Hangul"),
    (0x3190, ""),
    (0x3400, "Han"),
    (0xA000, "other"),
    (0xAC00, "Hangul"),
    (0xD7B0, ""),
    (0xF900, "Han"),
    (0xFB00, ""),
    (0xFB50, "Arabic"),
    (0xFE00, ""),
    (0xFE70, "Arabic"),
    (0xFF00, ""),
    (0xFF66, "Kana"),
    (0xFFA0, "Hangul"),
    (0xFFE0, ""),
    (0x10000, "other"),
    (0x1F000, ""),  # pictures
    (0x20000, "Han"),
    (0x40000, ""),
)
_STARTS = np.array([start for start, _ in _BLOCKS], dtype=np.uint32)
_NAMES = sorted({name for _, name in _BLOCKS if name})
_NUMBERS = np.array([_NAMES.index(name) if name else len(_NAMES) for _, name in _BLOCKS])


def script_of(text: str) -> str:
    """The script of most letters, NONE for a text without any; a text with kana is Japanese and called Kana."""
    part = text[:LOOKED_AT]
    if part.isascii():
        return "Latin" if any(map(str.isalpha, part)) else NONE
    points = np.frombuffer(part.encode("utf-32-le", errors="surrogatepass"), "<u4")
    numbers = _NUMBERS[np.searchsorted(_STARTS, points, side="right") - 1]
    counts = np.bincount(numbers, minlength=len(_NAMES) + 1)[: len(_NAMES)]
    if not counts.any():
        return NONE
    name = _NAMES[int(counts.argmax())]
    return "Kana" if name == "Han" and counts[_NAMES.index("Kana")] else name
