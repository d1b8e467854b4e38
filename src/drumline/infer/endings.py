"""Where an answer is over: at an id that ends answers, at a stop text, or at the most tokens."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from drumline.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Written:
    """A whole answer."""

    text: str
    """Without the stop text that ended it."""
    num_tokens: int
    """The id that ended it is not counted."""
    finish: Literal["end", "length", "stop"]


class Endings:
    """Judges answers by their ids alone, so that they end alike in whatever way the ids were made."""

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int], stop: Sequence[str] = ()) -> None:
        """ends: ids that end an answer; stop: texts that do."""
        self._tokenizer = tokenizer
        self.ends = tuple(dict.fromkeys(ends))
        self.stop = tuple(text for text in stop if text)

    def judge(self, ids: Sequence[int], limit: int) -> Written | None:
        """The answer that these ids hold, of which those behind its end do not count; None: it goes on."""
        over = next((place for place, each in enumerate(ids[:limit]) if each in self.ends), None)
        own = list(ids[: limit if over is None else over])
        text = self._tokenizer.decode(own)
        if self._stop_in(text) is not None:
            # The first token with which the stop text is there.
            count = bisect.bisect_left(range(len(own)), True, key=lambda n: self._has_stop(own[:n]))
            # What later tokens add to the text, such as another stop text that begins before, does not count.
            kept = self._tokenizer.decode(own[:count])
            return Written(kept[: self._stop_in(kept)], count, "stop")
        if over is not None:
            return Written(text, len(own), "end")
        return Written(text, len(own), "length") if len(own) >= limit else None

    def _has_stop(self, ids: Sequence[int]) -> bool:
        return self._stop_in(self._tokenizer.decode(ids)) is not None

    def _stop_in(self, text: str) -> int | None:
        """Where the first of the stop texts begins."""
        found = [place for each in self.stop if (place := text.find(each)) >= 0]
        return min(found, default=None)
