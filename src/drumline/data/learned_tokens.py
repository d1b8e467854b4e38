"""Records of language modelling as token ids, and which of them the model shall learn to write.

What each class gives of a record: its ids, int64 [T], and which are learned, bool [T]. Of a record with more than
`context` ids the first `context` are what is kept of it, and the others are what it loses, so that whoever cuts there
can count them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from drumline.data.chat import Message, chat_of, is_messages, messages_of, shared_start, tools_of, without
from drumline.data.features import Record, Row, text_of
from drumline.data.row_formats import RowFormat, instruction_prompt
from drumline.data.templates import Template
from drumline.data.token_rows import Learned, shifted_row
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import DataError

AFTER_PROMPT = "\n\n"
"""Between an instruction and its output where no template says what stands there."""


class LearnedTokens(Protocol):
    """What turns a record into ids; picklable."""

    @property
    def key(self) -> Sequence[str]:
        """All that decides what is given of a record."""

    def __call__(self, record: Record) -> tuple[Ids, Learned]:
        """Encode one record. Raises DataError for one that cannot be read."""


class TextTokens:
    """`text`, between what the tokenizer puts before each text (as BOS) and its end-of-document id; all is learned.

    Control tokens in a text are taken as such.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = start_ids(tokenizer)
        self.key = ("text 1", tokenizer.fingerprint)

    def __call__(self, record: Record) -> tuple[Ids, Learned]:
        """Encode one record."""
        ids = ended(after_start(self._start, self._tokenizer.encode(text_of(record, "text"))), self._tokenizer)
        return ids, np.ones(len(ids), dtype=np.bool_)


class ChatTokens:
    """`messages` (or `conversations`), `tools` and `system` by a template.

    Of a chat that is too long the end is cut off; where nothing learned would be left, or its last turn alone is
    learned (keep_last), as much as it takes of what comes before the learned words, from the beginning.
    """

    def __init__(self, template: Template, tokenizer: Tokenizer, context: int, *, keep_last: bool = False) -> None:
        self._template = template
        self._context = context
        self._keep_last = keep_last
        self._start = start_ids(tokenizer)
        self.key = ("chat 2", tokenizer.fingerprint, template.fingerprint, str(context), str(keep_last))

    def __call__(self, record: Record) -> tuple[Ids, Learned]:
        """Encode one record."""
        ids, learned = self._template.render(*chat_of(record))
        if not self._keep_last and learned[: self._context].any():
            return ids, learned
        return without_start(ids, learned, len(ids) - self._context, self._start)


class AnswerTokens:
    """`prompt` and `completion`, texts or messages: the completion is learned, with the token that ends it.

    template: for messages, and for texts that shall stand as turns of a chat; None: one text stands after the other.
    Of a row that is too long the beginning of the prompt is cut off, and only where that is not enough the end of the
    completion.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template | None, form: RowFormat, context: int) -> None:
        self._parts = PromptAnswer(tokenizer, template)
        self._form = form
        self._context = context
        self.key = ("answer 2", *self._parts.key, json.dumps(form.columns), str(context))

    def __call__(self, record: Record) -> tuple[Ids, Learned]:
        """Encode one record."""
        record = with_prompt(record, self._form, templated=self._parts.template is not None)
        ids, learned = self._parts.encode(record, record.get("prompt"), "completion")
        return without_start(ids, learned, len(ids) - self._context, self._parts.start)


class AsRows:
    """What is learned of a record as the one row that it becomes on disk."""

    def __init__(self, encode: LearnedTokens) -> None:
        self._encode = encode

    def __call__(self, record: Record) -> list[tuple[Ids, Learned]]:
        """Encode one record."""
        return [self._encode(record)]


class PreferenceTokens:
    """`prompt`, `chosen` and `rejected`, texts or messages, as two rows: the prompt with each answer, which is learned.

    Without a prompt the two are chats that begin alike, and what follows is the answer. Of a pair that is too long as
    much is cut off the beginning of the prompt in both.
    """

    def __init__(self, tokenizer: Tokenizer, template: Template | None, context: int) -> None:
        self._parts = PromptAnswer(tokenizer, template)
        self._context = context
        self.key = ("preference 1", *self._parts.key, str(context))

    def lengths(self, record: Record) -> tuple[int, ...]:
        """Tokens of the prompt with each answer, before any is cut."""
        return tuple(len(ids) for ids, _ in self._encoded(record))

    def __call__(self, record: Record) -> list[tuple[Ids, Learned]]:
        """Encode one record: the chosen answer, then the rejected one."""
        both = self._encoded(record)
        over = max(len(ids) for ids, _ in both) - self._context
        rows = []
        for ids, learned in both:
            length = min(self._context, len(ids) - prompt_cut(ids, learned, over, self._parts.start))
            ids, learned = without_start(ids, learned, over, self._parts.start)
            rows.append((ids[:length], learned[:length]))
        return rows

    def _encoded(self, record: Record) -> list[tuple[Ids, Learned]]:
        prompt = record.get("prompt")
        if prompt is None:
            pair = [messages_of(record.get(name), name) for name in ("chosen", "rejected")]
            prompt = shared_start(*pair)
            if not prompt:
                raise DataError("chosen and rejected do not begin alike", "give the row a prompt")
        return [self._parts.encode(record, prompt, name) for name in ("chosen", "rejected")]


class PreferenceFeatures:
    """A pair of answers as {"chosen": row, "rejected": row}, each input_ids and labels, int64 [T], by `shifted_row`."""

    def __init__(self, encode: PreferenceTokens) -> None:
        self._encode = encode

    def __call__(self, record: Record) -> Row:
        """Encode one record."""
        chosen, rejected = self._encode(record)
        return {"chosen": shifted_row(*chosen), "rejected": shifted_row(*rejected)}


class PromptAnswer:
    """A prompt with an answer, as texts or as messages, of which the answer is learned."""

    def __init__(self, tokenizer: Tokenizer, template: Template | None) -> None:
        self.template = template
        self._tokenizer = tokenizer
        self.start = start_ids(tokenizer)
        """What stands before each text."""
        self.key = (tokenizer.fingerprint, "" if template is None else template.fingerprint)

    def encode(self, record: Record, prompt: Any, name: str) -> tuple[Ids, Learned]:
        """Ids of prompt and answer, and which are learned; `name`: the column with the answer."""
        if self.template is None:
            return self._plain(text_of({"prompt": prompt}, "prompt"), text_of(record, name))
        turns = turns_of_both(record, prompt, name)
        return self.template.render(turns.messages, turns.tools, first=turns.first)

    def _plain(self, prompt: str, answer: str) -> tuple[Ids, Learned]:
        head = after_start(self.start, self._tokenizer.encode(prompt))
        ids = np.concatenate([head, ended(self._tokenizer.encode(answer), self._tokenizer)])
        return ids, np.arange(len(ids)) >= len(head)


def with_prompt(record: Record, form: RowFormat, *, templated: bool) -> Record:
    """A record with prompt and completion, whatever the form calls them."""
    if not form.has_instruction:
        return record
    prompt = instruction_prompt(record) + ("" if templated else AFTER_PROMPT)
    return {"prompt": prompt, "completion": text_of(record, "output")}


class ShiftedFeatures:
    """What is learned of a record as one row, cut to `context` ids: input_ids and labels, int64 [T]."""

    def __init__(self, encode: LearnedTokens, context: int) -> None:
        self._encode = encode
        self._context = context

    def __call__(self, record: Record) -> Row:
        """Encode one record."""
        ids, learned = self._encode(record)
        return dict(shifted_row(ids[: self._context], learned[: self._context]))


class Turns(NamedTuple):
    """A chat of which the messages from number `first` on are the answer."""

    messages: list[Message]
    tools: list[Any] | None
    first: int


def turns_of_both(record: Record, prompt: Any, name: str) -> Turns:
    """A prompt and the answer in column `name`, texts or messages, as one chat."""
    before = turns_of(prompt, "user", "prompt")
    answer = turns_of(record.get(name), "assistant", name)
    answer = without(answer, before) or answer  # some data sets repeat the prompt in the answer
    return Turns([*before, *answer], tools_of(record.get("tools")), len(before))


def turns_of(value: Any, role: str, name: str) -> list[Message]:
    """Messages, or a text as one of this role."""
    if isinstance(value, str) and not is_messages(value):
        return [{"role": role, "content": value}]
    return messages_of(value, name)


def start_ids(tokenizer: Tokenizer) -> Ids:
    """What the tokenizer's own template puts before a text, int64 [ids]: of most models nothing, of others BOS."""
    probe, row = tokenizer.encode("a"), tokenizer.encode_row("a", None, 2**20).ids
    for place in range(len(row) - len(probe) + 1):
        if np.array_equal(row[place : place + len(probe)], probe):
            return row[:place]
    return row[:0]


def after_start(start: Ids, ids: Ids) -> Ids:
    """A text's ids after what stands before each text, which is not written twice."""
    return ids if np.array_equal(ids[: len(start)], start) else np.concatenate([start, ids])


def ended(ids: Ids, tokenizer: Tokenizer) -> Ids:
    """A text's ids with the end-of-document id, which is not written twice."""
    end = tokenizer.end_of_document
    return ids if len(ids) and ids[-1] == end else np.append(ids, end)


def prompt_cut(ids: Ids, learned: Learned, over: int, start: Ids) -> int:
    """How many of `over` ids can be cut off before the learned ones.

    What stands before each text stays, and one more id, since the first learned one is learned after it.
    """
    num_prompt = int(learned.argmax()) if learned.any() else 0
    kept = len(start) if np.array_equal(ids[: len(start)], start) else 0
    return max(0, min(over, num_prompt - kept - 1))


def without_start(ids: Ids, learned: Learned, over: int, start: Ids) -> tuple[Ids, Learned]:
    """The same, with what of `over` ids can be cut off before the learned ones moved to the end, as what is lost."""
    cut = prompt_cut(ids, learned, over, start)
    if not cut:
        return ids, learned
    kept = len(start) if np.array_equal(ids[: len(start)], start) else 0
    order = np.concatenate([np.arange(kept), np.arange(kept + cut, len(ids)), np.arange(kept, kept + cut)])
    return ids[order], learned[order]
