"""A chat as tokens, and which of them the model shall learn to write."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from drumline.data.chat import Message
from drumline.data.chat_masks import Masks, Span
from drumline.data.jinja_templates import Found, Renderer, find_template
from drumline.data.token_rows import Learned
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import ConfigError, DataError

Learn = Literal["last", "assistant", "all"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_FIRST_SHIELD = 0xF1000
_PRIVATE = "[\U000f0000-\U000ffffd]"
"""Code points for private use: none of them is left in a message, so that here they can stand for something."""


class _Piece(NamedTuple):
    text: str
    learned: bool
    plain: bool
    """Whether control tokens in it are words of a message, and no control tokens."""


class Template:
    """A chat template with a tokenizer. `learn`: the assistant's last turn, all its turns, or all tokens.

    Control tokens come from the template alone: one that stands in a message is written as the characters that it has,
    as far as the tokenizer marks it special (others, as <think> in some, are taken as tokens: models write them). The
    text is tokenised in pieces that begin and end where the learned words do, as it is when the model is used, where
    the prompt comes alone. Nothing is added to what the template writes, so that there is no second BOS.
    """

    def __init__(self, found: Found, tokenizer: Tokenizer, learn: Learn = "assistant") -> None:
        """Raise ConfigError for a template that itself holds characters that here stand for something else."""
        if re.search(_PRIVATE, found.source):
            raise ConfigError(
                f"the chat template in {found.where} holds characters for private use (U+F0000 to U+FFFFD), which "
                "stand for control tokens while it is filled in",
                "take them out of it, or take another template: --set data.template=chatml, for instance",
            )
        self._tokens = PieceTokens(tokenizer)
        self._renderer = Renderer(found, named_tokens(tokenizer))
        self._masks = Masks(self._renderer, self._tokens.special)
        self._learn = learn
        either = "|".join([*map(re.escape, sorted(self._tokens.special, key=len, reverse=True)), _PRIVATE])
        self._shielded = re.compile(either)

    @property
    def source(self) -> str:
        """The Jinja template."""
        return self._renderer.source

    @property
    def where(self) -> str:
        """Where it is from."""
        return self._renderer.where

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of what decides which ids a chat becomes, besides the tokenizer."""
        parts = ["chat 2", self.source, self._learn, self._renderer.tokens]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, first: int = 0
    ) -> tuple[Ids, Learned]:
        """Ids of a chat, int64 [T], and which are learned, bool [T]; turns before message `first` are not.

        Raises DataError where the template refuses the messages, or it cannot be told which words are the assistant's.
        """
        pieces = self._pieces(messages, tools, first)
        encoded = self._tokens.encode(pieces)
        ids = np.concatenate([np.empty(0, dtype=np.int64), *encoded])
        learned = np.concatenate(
            [np.empty(0, dtype=np.bool_)]
            + [np.full(len(part), piece.learned) for part, piece in zip(encoded, pieces, strict=True)]
        )
        return ids, learned

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> Ids:
        """Ids of a chat and of what stands before the assistant's next words, int64 [T]: what a model goes on from."""
        shielded, table = self._shield([list(messages), tools])
        pieces = self._cut(self._masks.text(*shielded, prompt=True), [], table)
        return np.concatenate([np.empty(0, dtype=np.int64), *self._tokens.encode(pieces)])

    @property
    def ends_answers(self) -> bool:
        """Whether something learned follows the assistant's last words, without which a model never learns to stop."""
        said = "word"
        try:
            ids, learned = self.render([{"role": "user", "content": "word"}, {"role": "assistant", "content": said}])
        except DataError:  # a template for other chats than the shortest one
            return True
        return bool(self._tokens.decode(ids[learned]).rpartition(said)[2].strip())

    def check(self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, first: int = 0) -> None:
        """Raise ConfigError unless the learned ids of this chat, decoded, are the words that are to be learned."""
        wanted = [piece.text for piece in self._pieces(messages, tools, first) if piece.learned]
        ids, learned = self.render(messages, tools, first=first)
        found = self._tokens.decode(ids[learned])
        # Some tokenizers do not keep spaces and capitals, which is no matter of the template.
        if _bare(found) != _bare("".join(wanted)):
            raise ConfigError(
                f"with this tokenizer the words that {self.where} gives to learn do not come back from their tokens",
                "take the tokenizer that belongs to the template, or another template",
            )

    def _pieces(self, messages: Sequence[Message], tools: Sequence[Any] | None, first: int) -> list[_Piece]:
        (shielded, tools), table = self._shield([list(messages), tools])
        if self._learn == "last":
            places = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
            first = max(first, places[-1] if places else 0)
        if self._learn == "all" and not first:
            text = self._masks.text(shielded, tools)
            return self._cut(text, [Span(0, len(text))], table)
        return self._cut(*self._masks.find(shielded, tools, first), table)

    def _shield(self, value: Any) -> tuple[Any, list[str]]:
        """The same with a private code point in the place of each control token, and what each stands for."""
        table: list[str] = []

        def shield(inner: Any) -> Any:
            if isinstance(inner, str):
                return self._shielded.sub(stand_in, inner)
            if isinstance(inner, dict):
                return {name: shield(item) for name, item in inner.items()}
            return [shield(item) for item in inner] if isinstance(inner, list | tuple) else inner

        def stand_in(found: re.Match[str]) -> str:
            if found[0] not in table:
                table.append(found[0])
            return chr(_FIRST_SHIELD + table.index(found[0]))

        return shield(value), table

    def _cut(self, text: str, spans: Sequence[Span], table: Sequence[str]) -> list[_Piece]:
        """The text in pieces that are learned or not, control tokens in messages apart."""
        pieces, start = list[_Piece](), 0
        for span in [*spans, Span(len(text), len(text))]:
            for part, learned in ((text[start : span.start], False), (text[span.start : span.end], True)):
                for number, piece in enumerate(re.split(f"({_PRIVATE})", part)):
                    plain = number % 2 == 1
                    words = table[ord(piece) - _FIRST_SHIELD] if plain else piece
                    if words:
                        pieces.append(_Piece(words, learned, plain))
            start = span.end
        return pieces


class PieceTokens:
    """Tokenises a text piece by piece, so that no token stands across two, and the pieces together read as the text.

    `special` are the tokenizer's control tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._package: Any = getattr(tokenizer, "_tokenizer", None)
        added = {} if self._package is None else self._package.get_added_tokens_decoder()
        self._control = {number for number, token in added.items() if token.special}
        self.special = tuple(str(added[number].content) for number in sorted(self._control) if added[number].content)
        # Whether a text gets something at its start, as the space that Llama's first tokenizer begins with.
        apart = [*tokenizer.encode("x\n"), *tokenizer.encode("Hello")]
        self._simple = apart == list(tokenizer.encode("x\nHello"))

    def encode(self, pieces: Sequence[_Piece]) -> list[Ids]:
        """The ids of each piece."""
        result: list[Ids] = []
        for number, piece in enumerate(pieces):
            if piece.plain:
                result.append(self._as_characters(piece.text))
            elif not number or self._simple:
                result.append(self._tokenizer.encode(piece.text))
            else:
                result.append(self._continued(pieces[number - 1], piece.text))
        return result

    def decode(self, ids: Ids) -> str:
        """The text of some ids, control tokens too."""
        if self._package is None:
            return self._tokenizer.decode(ids)
        text: str = self._package.decode([int(number) for number in ids], skip_special_tokens=False)
        return text

    def _continued(self, before: _Piece, text: str) -> Ids:
        """The ids of a text that goes on after another: those of both, without those of the first."""
        for context in ("\n",) if before.plain else (before.text, "\n"):
            head, both = self._tokenizer.encode(context), self._tokenizer.encode(context + text)
            if len(both) > len(head) and np.array_equal(both[: len(head)], head):
                return both[len(head) :]
        return self._tokenizer.encode(text)

    def _as_characters(self, text: str) -> Ids:
        """The ids of a control token as plain characters; where the tokenizer has no other way, cut in two."""
        if self._package is None:
            return self._tokenizer.encode(text)
        self._package.encode_special_tokens = True
        try:
            after = _Piece("\n", False, True)
            ids = self._tokenizer.encode(text) if self._simple else self._continued(after, text)
        finally:
            self._package.encode_special_tokens = False
        if not self._control.intersection(ids.tolist()):
            return ids
        return np.concatenate([self._tokenizer.encode(text[:1]), self._tokenizer.encode(text[1:])])


def load_template(name: str | None, tokenizer: Tokenizer, learn: Learn = "assistant") -> Template:
    """The template that data.template names, for this tokenizer. Raises ConfigError for one that there is not."""
    return Template(find_template(name, getattr(tokenizer, "folder", None)), tokenizer, learn)


def answer_ends(own: Iterable[int], tokenizer: Tokenizer, template: Template | None) -> list[int]:
    """Ids that an answer may end with: the model's own, the one after each text, and in a chat the one after a turn.

    The last is a control token; there is none where the template ends the assistant's turn with ordinary words, or does
    not show where that turn is.
    """
    ends = list(own)
    with suppress(DataError):  # it has none
        ends.append(int(tokenizer.end_of_document))
    if template is not None:
        with suppress(DataError):
            ids, learned = template.render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
            last = ids[learned][-1:].tolist()
            ends += [int(number) for number in last if not tokenizer.decode([number])]
    return list(dict.fromkeys(ends))


def named_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The tokens that a tokenizer's folder names by their role, such as bos_token."""
    folder: Path | None = getattr(tokenizer, "folder", None)
    if folder is None:
        return {}
    found: dict[str, str] = {}
    for file in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for role in _NAMED:
            token = values.get(role)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                found[role] = token
    return found


def _bare(text: str) -> str:
    return "".join(text.split()).casefold()
