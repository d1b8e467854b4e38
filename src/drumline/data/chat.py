"""Messages of a chat: what a row may hold, brought to one form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drumline.errors import DataError

Message = dict[str, Any]
"""`role` and `content`, a text; whatever else the row gives it, as tool_calls, goes to the template as it is."""

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "function": "tool",
    "observation": "tool",
}
"""ShareGPT's names of roles, and the usual ones."""


def messages_of(value: Any, name: str = "messages") -> list[Message]:
    """A row's messages: a list of objects with role and content, or with from and value as ShareGPT writes them.

    A list in JSON is read as such, and so are lists of roles and of contents, as the package datasets may give them.
    Content in parts is joined; one that is null becomes empty where there are tool_calls. `name` is what errors call
    it. Raises DataError, which never repeats a text, for what is none.
    """
    value = _listed(_read(value))
    if not _is_list(value):
        what = "is missing" if value is None else f"is a {type(value).__name__}, not a list of messages"
        raise DataError(f"{name} {what}", f"correct the row, or name the column in data.columns.{name}")
    if not len(value):
        raise DataError(f"{name} is empty", "correct the row, or leave it out")
    return [_message(entry, f"{name}, message {number}") for number, entry in enumerate(value)]


def is_messages(value: Any) -> bool:
    """Whether a value is a list of messages, in JSON or as it is."""
    value = _listed(_read(value))
    return (
        _is_list(value)
        and len(value) > 0
        and all(isinstance(entry, Mapping) and ("role" in entry or "from" in entry) for entry in value)
    )


def tools_of(value: Any) -> list[Any] | None:
    """A row's tools: a list of JSON schemas, as it is or in JSON; None where the row has none."""
    value = _read(_filled(value))
    if value is None or value == "" or (_is_list(value) and not len(value)):
        return None
    if not _is_list(value):
        raise DataError(f"tools is a {type(value).__name__}, not a list of functions", "correct the row")
    return [_read(tool) for tool in value]


def chat_of(record: Mapping[str, Any]) -> tuple[list[Message], list[Any] | None]:
    """The messages and tools of a row; the words in a column `system` go before the messages that have none."""
    messages = messages_of(record.get("messages", record.get("conversations")))
    system = record.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages, tools_of(record.get("tools"))


def without(messages: Sequence[Message], prompt: Sequence[Message]) -> list[Message] | None:
    """What follows `prompt` in messages that begin with it; None where they do not."""
    begins = len(messages) > len(prompt) and list(messages[: len(prompt)]) == list(prompt)
    return list(messages[len(prompt) :]) if begins else None


def shared_start(first: Sequence[Message], second: Sequence[Message]) -> list[Message]:
    """The messages that two chats begin with alike, without their last turn of the assistant."""
    length = 0
    for one, other in zip(first[:-1], second[:-1], strict=False):
        if one != other:
            break
        length += 1
    return list(first[:length])


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise DataError(f"{where} is a {type(entry).__name__}, not an object with role and content", "correct the row")
    message = {name: value for name, value in entry.items() if value is not None}
    role = message.pop("role", message.get("from"))
    message.pop("from", None)
    if not isinstance(role, str):
        raise DataError(f"{where} has no role", "give each message a role (or from) and content (or value)")
    content = message.pop("content", None)
    if content is None:
        content = message.pop("value", None)
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = _joined(content, where)
    if not isinstance(content, str):
        what = "has no content" if content is None else f"has content that is a {type(content).__name__}, not text"
        raise DataError(f"{where} {what}", "give each message a role (or from) and content (or value)")
    calls = {"tool_calls": _calls(message.pop("tool_calls"))} if message.get("tool_calls") else {}
    return {"role": _ROLES.get(role, role), "content": content, **message, **calls}


def _joined(parts: Iterable[Any], where: str) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise DataError(f"{where} has a part that is no text", "leave out rows with images or sound")
        texts.append(part["text"])
    return "".join(texts)


def _calls(calls: Any) -> list[Any]:
    """Tool calls with their arguments as objects, which templates write as JSON; data sets often hold JSON already."""
    calls, result = _read(_filled(calls)), []
    if not _is_list(calls):
        raise DataError(f"tool_calls is a {type(calls).__name__}, not a list of calls", "correct the row")
    for call in calls:
        if isinstance(call, Mapping):
            call = {name: value for name, value in call.items() if value is not None}
            inner = call.get("function", call)
            if isinstance(inner, Mapping) and isinstance(inner.get("arguments"), str):
                inner = {**inner, "arguments": _read(inner["arguments"])}
            call = {**call, "function": inner} if "function" in call else dict(inner)
        result.append(call)
    return result


def _filled(value: Any) -> Any:
    """The same without the nulls that Parquet and Arrow fill an object up with to the fields of all rows' objects.

    Called before JSON in texts is read, where a null was written by somebody.
    """
    if isinstance(value, Mapping):
        return {name: _filled(inner) for name, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if _is_list(value) else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _listed(value: Any) -> Any:
    """Objects in a list, where a value is an object of equally long lists."""
    if not isinstance(value, Mapping) or not value or not all(map(_is_list, value.values())):
        return value
    return [dict(zip(value, entry, strict=True)) for entry in zip(*value.values(), strict=False)]


def _read(value: Any) -> Any:
    """What a text holds that is a JSON list or object, as CSV and some data sets keep them; else the value itself."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
