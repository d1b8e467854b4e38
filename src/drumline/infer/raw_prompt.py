"""A prompt that is gone on from as it stands: its own control tokens, and the text between them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.errors import DataError
from drumline.infer.prompt_text import Piece, PromptText, field_text

_SHIELD = "\U000f1000"


class RawPrompt:
    """A prompt as runs of text, of its own words and of a row's fields, between control tokens.

    Only a control token that stands whole in the prompt's own words is one: all of a run is text, so that a row makes
    none with what stands beside it.
    """

    def __init__(self, text: PromptText, special: Sequence[str]) -> None:
        """special: the tokenizer's control tokens."""
        longest_first = sorted(map(re.escape, special), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(longest_first)})") if special else None
        self._controls: list[str] = []
        self._runs: list[list[Piece]] = [[]]
        for piece in text.pieces:
            own = [piece.text] if piece.is_field or self._special is None else self._special.split(piece.text)
            for number, part in enumerate(own):
                if number % 2:
                    self._controls.append(part)
                    self._runs.append([])
                elif part:
                    self._runs[-1].append(Piece(part, piece.is_field))

    @property
    def template(self) -> str:
        """A Jinja template of which the runs are the messages."""
        controls = [json.dumps(control, ensure_ascii=False) for control in self._controls]
        runs = [f"messages[{number}].content" for number in range(len(self._runs))]
        parts = [part for pair in zip(runs, [*controls, ""], strict=True) for part in pair if part]
        return "".join(f"{{{{ {part} }}}}" for part in parts)

    def fill(self, values: Mapping[str, Any]) -> list[str]:
        """The runs for a row. Raises DataError as `field_text` does, and where a control token of the prompt's would be
        another one beside the row's text.
        """
        runs = [
            "".join(field_text(values, piece.text) if piece.is_field else piece.text for piece in run)
            for run in self._runs
        ]
        if self._special is not None and self._controls:
            hidden = [self._special.sub(_SHIELD, run) for run in runs]
            whole = "".join(part for pair in zip(hidden, [*self._controls, ""], strict=True) for part in pair)
            if self._special.findall(whole) != self._controls:
                raise DataError("the row's text and the prompt make a control token together", "correct the row")
        return runs
