"""What a model is asked of a row, as token ids."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drumline.config.inference import PromptConfig
from drumline.data.chat import Message, messages_of
from drumline.data.jinja_templates import Found, find_template, own_template
from drumline.data.templates import PieceTokens, Template
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import ConfigError, DataError
from drumline.infer.prompt_text import PromptText, checked, field_text
from drumline.infer.raw_prompt import RawPrompt
from drumline.infer.records import Row
from drumline.infer.strategies import Strategy, load_strategy

_SETTING = "task.prompt"
_LONGEST = 2**30


class PromptMaker:
    """Makes the ids that a causal model goes on from, of a row's fields or of its own chat. Thread-safe.

    With a chat template (the configured one, else that of `folder` or of the tokenizer's own folder) they are a chat up
    to where the assistant begins. Without one, or with `raw`, they are the prompt as it stands, after what the
    tokenizer puts before each text, such as BOS, unless the prompt itself begins so.

    Control tokens come from the template and, where there is none, from the prompt's own words alone. One that stands
    in a row (or, in a chat, in the prompt), or that a row makes with what stands beside it in the prompt, becomes the
    characters that it has, as far as the tokenizer marks it special.
    """

    def __init__(
        self, config: PromptConfig, tokenizer: Tokenizer, folder: Path | None, labels: Sequence[str] = ()
    ) -> None:
        """Raise ConfigError for what no row could be asked with: no prompt, unknown braces, no template for a system.

        labels: those that are configured, which win over the strategy's.
        """
        strategy = None if config.strategy is None else load_strategy(config.strategy)
        _check(config)
        self.labels: tuple[str, ...] = tuple(labels or (strategy.labels if strategy else ()))
        self.prompt, self.system = _texts(config, strategy)
        self._column = config.messages
        if self.prompt is None and self._column is None:
            raise no_prompt()
        where = config.strategy if strategy and not config.prompt else f"{_SETTING}.prompt"
        self._prompt = None if self.prompt is None else PromptText(self.prompt, f"the prompt ({where})")
        self._system = None if self.system is None else PromptText(self.system, "the system message")
        self._lock = threading.Lock()
        """The tokenizer is switched while control tokens in a row are encoded."""
        self._raw: RawPrompt | None = None
        found = None if config.raw else _template(config.template, tokenizer, folder)
        self._start = np.empty(0, dtype=np.int64) if found else text_start(tokenizer)
        self.chat_template = Template(found, tokenizer) if found else None
        """What makes the prompt where it is a chat."""
        self._template = self.chat_template or self._as_written(tokenizer, raw=config.raw)
        self._try()

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns that each row must have."""
        return _fields(self._column, self._system, self._prompt)

    def ids(self, row: Row) -> Ids:
        """The ids that are gone on from, int64 [tokens]. Raises DataError, whose problem names the row's fault."""
        messages = self._messages(row.values)
        with self._lock:
            ids = self._template.prompt(messages)
        begins = len(ids) >= len(self._start) and np.array_equal(ids[: len(self._start)], self._start)
        ids = ids if begins else np.concatenate([self._start, ids])
        if not len(ids):
            raise DataError("the prompt is empty", "correct the row")
        return ids

    def ids_or_problem(self, row: Row) -> Ids | str:
        """As `ids`, and a text in the place of a DataError: what a predictor's `prepare` gives for such a row."""
        if row.problem is not None:
            return row.problem
        try:
            return self.ids(row)
        except DataError as error:
            return error.problem

    def _messages(self, values: Mapping[str, Any]) -> list[Message]:
        if self._column is not None:
            if self._column not in values:
                field_text(values, self._column)
            messages = messages_of(values[self._column], self._column)
            _check_texts(messages, f"the field {self._column!r}")
            if messages[-1]["role"] == "assistant":
                raise DataError(
                    f"the last message in {self._column!r} is the assistant's, so that there is nothing to answer",
                    "end each chat with a message to the assistant",
                )
            return messages
        assert self._prompt is not None
        if self._raw is not None:
            return [{"role": "text", "content": run} for run in self._raw.fill(values)]
        system = [] if self._system is None else [{"role": "system", "content": self._system.fill(values)}]
        return [*system, {"role": "user", "content": self._prompt.fill(values)}]

    def _as_written(self, tokenizer: Tokenizer, *, raw: bool) -> Template:
        """The prompt as a template of which what is no control token is the messages, guarded as those are.

        Raises ConfigError for a system message, which only a chat template has a place for.
        """
        if self._system is not None or self._prompt is None:
            what = "rows hold chats" if self._prompt is None else "there is a system message"
            why = f"{_SETTING}.raw is set" if raw else "the model has no chat template to write them with"
            other = f"leave {_SETTING}.raw out" if raw else f"--set {_SETTING}.template=chatml, or the model's own file"
            raise ConfigError(
                f"{what}, and {why}",
                f"{other}; or --set {_SETTING}.system='', and write all of it in {_SETTING}.prompt",
            )
        self._raw = RawPrompt(self._prompt, PieceTokens(tokenizer).special)
        return Template(Found(self._raw.template, "the prompt"), tokenizer)

    def _try(self) -> None:
        """Ask the template for a made-up row: what it refuses of that, it refuses of all. Raises ConfigError."""
        if self._column is not None:
            return
        try:
            self.ids(Row(0, dict.fromkeys(self.fields, "text")))
        except DataError as error:
            raise ConfigError(
                f"no row can be asked so: {error.problem}",
                f"correct the prompt; where the template knows no system message: --set {_SETTING}.system='', and "
                f"write it in {_SETTING}.prompt",
            ) from error


def no_prompt() -> ConfigError:
    """The error for settings that ask a model nothing."""
    return ConfigError(
        "there is nothing to ask the model: no prompt",
        f"--set {_SETTING}.prompt='Is this about cats? {{text}}', or {_SETTING}.strategy=NAME, or "
        f"{_SETTING}.messages=COLUMN where rows hold chats",
    )


def check_fields(config: PromptConfig, columns: Sequence[str]) -> None:
    """Raise DataError where the prompt names a column that no row has: `columns` are those of all rows together."""
    prompt, system = _texts(config, None if config.strategy is None else load_strategy(config.strategy))
    texts = [None if text is None else PromptText(text, "the prompt") for text in (system, prompt)]
    absent = [name for name in _fields(config.messages, *texts) if name not in columns]
    if absent and columns:
        raise DataError(
            f"no row has a field {absent[0]!r}, which the prompt names; the rows have {', '.join(columns)}",
            "correct the prompt, or name other rows",
        )


def _texts(config: PromptConfig, strategy: Strategy | None) -> tuple[str | None, str | None]:
    """Prompt (None where rows hold chats) and system message, with fields in braces; what is configured wins."""
    system = config.system if config.system is not None else strategy.system if strategy else None
    return config.prompt or (strategy.prompt if strategy else None), system or None


def _fields(column: str | None, *texts: PromptText | None) -> tuple[str, ...]:
    names = [name for text in texts if text is not None for name in text.fields]
    return tuple(dict.fromkeys([*([] if column is None else [column]), *names]))


def text_start(tokenizer: Tokenizer) -> Ids:
    """What the tokenizer puts before each text, such as BOS, int64 [tokens]; often nothing."""
    plain, whole = tokenizer.encode("a"), tokenizer.encode_row("a", None, _LONGEST).ids
    places = [at for at in range(len(whole) - len(plain) + 1) if np.array_equal(whole[at : at + len(plain)], plain)]
    return whole[: places[0]] if places else whole[:0]


def _check(config: PromptConfig) -> None:
    """Raise ConfigError for settings that exclude each other."""
    if config.messages is not None:
        others = [name for name in ("prompt", "system", "strategy") if getattr(config, name) is not None]
        if others:
            raise ConfigError(
                f"{_SETTING}.messages and {_SETTING}.{others[0]} are both set: rows hold whole chats, or are asked",
                "leave one of the two out",
            )
    if config.raw:
        for name in ("template", "messages", "system"):
            if getattr(config, name):
                raise ConfigError(
                    f"{_SETTING}.raw goes on from the prompt as it stands, and {_SETTING}.{name} is set too",
                    "leave one of the two out",
                )


def _template(name: str | None, tokenizer: Tokenizer, folder: Path | None) -> Found | None:
    own: Path | None = getattr(tokenizer, "folder", None)
    if name is not None:
        try:
            return find_template(name, folder or own)
        except ConfigError as error:
            here = f"{_SETTING}.template"
            said = [text.replace("data.template", here) for text in (error.problem, error.fix)]
            raise ConfigError(*said) from error
    found = (own_template(each) for each in (folder, own) if each is not None)
    return next((each for each in found if each is not None), None)


def _check_texts(value: Any, what: str) -> None:
    """Raise DataError where a text anywhere in a chat has half a character."""
    if isinstance(value, str):
        checked(value, what)
    elif isinstance(value, Mapping):
        _check_texts(list(value.items()), what)
    elif isinstance(value, Sequence):
        for each in value:
            _check_texts(each, what)
