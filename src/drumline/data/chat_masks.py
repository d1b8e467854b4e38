"""Where in the text of a chat the words stand that the assistant writes: found, and never guessed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from drumline.data.chat import Message
from drumline.data.jinja_templates import CLOSES, OPENS
from drumline.errors import DataError

STANDS_IN = "\U000f0003"
"""Put in the place of a turn's words, to see where a template writes them."""
_MARKS = re.compile(f"[{OPENS}{CLOSES}]")


class Span(NamedTuple):
    """A part of a text, by its characters."""

    start: int
    end: int


class Renders(Protocol):
    """What `Renderer` of jinja_templates does."""

    @property
    def marks(self) -> bool:
        """Whether the template itself says what the assistant writes."""

    def render(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, prompt: bool = False) -> str:
        """The text of some messages."""


class Masks:
    """Finds what is learned in a chat; `special` are the tokenizer's control tokens, one of which ends a turn.

    Where the template has {% generation %}, that decides. Else what the template writes before the assistant's turn is
    compared with the whole, of which it must be the beginning, and the turn's words are found by putting a mark in
    their place. A turn ends with its end token.
    """

    def __init__(self, renderer: Renders, special: Sequence[str]) -> None:
        self._renderer = renderer
        either = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
        self._next_special = re.compile(rf"\s*(?:{either})")
        self._last_specials = re.compile(rf"(\s*(?:{either}))(?:\s*(?:{either}))*\s*$")
        self._ends_special = re.compile(rf"(?:{either})\s*$")

    def find(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, first: int = 0
    ) -> tuple[str, list[Span]]:
        """The text of a chat, and what the assistant writes in it from message number `first` on.

        Raises DataError for a template that changes earlier turns when later ones come, so that no turn can be found.
        """
        marked = self._renderer.render(messages, tools)
        text = _MARKS.sub("", marked)
        if not self._renderer.marks:
            turns = [place for place in range(first, len(messages)) if messages[place]["role"] == "assistant"]
            return text, [self._turn(messages, tools, place, text) for place in turns]
        begin = len(self._before(messages, tools, first, text)) if first else 0
        spans = [self._with_end(text, span) for span in _spans(marked) if span.start >= begin]
        return text, spans

    def _with_end(self, text: str, span: Span) -> Span:
        """A marked span with the end token, where the template's author left that outside."""
        following = self._next_special.match(text, span.end)
        inside = self._ends_special.search(text[span.start : span.end])
        return Span(span.start, following.end()) if following and not inside else span

    def _turn(self, messages: Sequence[Message], tools: Sequence[Any] | None, place: int, text: str) -> Span:
        before = self._before(messages, tools, place, text) if place else None
        words = None if messages[place].get("tool_calls") else self._words(messages, tools, place, text)
        if words is None:
            return self._rest(messages[: place + 1], tools, before, text)
        start = words.start
        if before is not None and len(before) <= start:
            # A template that does not write the turn's head for a prompt: whoever asks writes it, and not the model.
            headless = text[len(before) : start].strip() and before == self.text(messages[:place], tools)
            start = start if headless else len(before)
        following = self._next_special.match(text, words.end)
        if following:
            return Span(start, following.end())
        whole = self.text(messages[: place + 1], tools)
        if not text.startswith(whole):
            raise _hidden(place)
        return Span(start, max(words.end, len(whole.rstrip())))

    def _rest(self, messages: Sequence[Message], tools: Sequence[Any] | None, before: str | None, text: str) -> Span:
        """All of the last of these messages, of which more than its words is written, as calls of tools.

        Where it begins, if nothing tells what is written before it, and what ends it is told by a turn of words alone.
        """
        whole = self.text(messages, tools)
        plain = self.text([*messages[:-1], {"role": "assistant", "content": STANDS_IN}], tools)
        head, _, after = plain.partition(STANDS_IN)
        start = len(before or "")
        if (before is None or before == self.text(messages[:-1], tools)) and whole.startswith(head):
            start = len(head)
        ending = self._next_special.match(after)
        place = whole.rfind(ending[0].strip(), start) if ending else -1
        if ending and place >= 0:
            end = place + len(ending[0].strip())
        else:
            found = self._last_specials.search(whole, start)
            end = found.end(1) if found else len(whole.rstrip())
        if not text.startswith(whole[:end]):
            raise _hidden(len(messages) - 1)
        return Span(start, end)

    def _before(self, messages: Sequence[Message], tools: Sequence[Any] | None, place: int, text: str) -> str:
        """What stands before the words of a turn, as who asks the model for them would write it.

        Some templates then begin the words themselves, as with <think>, where this turn has none: without that.
        """
        for prompt in (True, False):
            before = self.text(messages[:place], tools, prompt=prompt)
            if text.startswith(before):
                return before
        raise _hidden(place)

    def _words(self, messages: Sequence[Message], tools: Sequence[Any] | None, place: int, text: str) -> Span | None:
        """Where a turn's words stand; None where the template makes something else of them."""
        changed = [*messages[:place], {**messages[place], "content": STANDS_IN}, *messages[place + 1 :]]
        other = self.text(changed, tools)
        before, found, after = other.partition(STANDS_IN)
        fits = found and STANDS_IN not in after and len(before) + len(after) <= len(text)
        if not fits or not text.startswith(before) or not text.endswith(after):
            return None
        return Span(len(before), len(text) - len(after))

    def text(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, prompt: bool = False) -> str:
        """The text of some messages; `prompt`: and of what stands before the assistant's next words."""
        return _MARKS.sub("", self._renderer.render(messages, tools, prompt=prompt))


def _spans(marked: str) -> list[Span]:
    """The spans between marks, counted without the marks; one that is empty is none."""
    spans, start, length = list[Span](), 0, 0
    for piece in re.split(f"([{OPENS}{CLOSES}])", marked):
        if piece == OPENS:
            start = length
        elif piece == CLOSES:
            spans.append(Span(start, length))
        else:
            length += len(piece)
    return [span for span in spans if span.end > span.start]


def _hidden(place: int) -> DataError:
    return DataError(
        f"the chat template writes the turns before message {place} differently once that message is there, so it "
        "cannot be told which words are the assistant's",
        "take a template with {% generation %}, as the packed ones: --set data.template=chatml, for instance; or learn "
        "the last turn alone: --set data.learn=last",
    )
