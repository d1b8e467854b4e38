"""What rows are, by their columns."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.data.row_formats import Format, detect_format, instruction_prompt
from drumline.errors import DataError

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("row", "kind", "reason", "messages"),
    [
        ({"text": "a", "url": "u"}, "text", "text: plain texts", False),
        ({"messages": CHAT, "prompt": "a"}, "chat", "messages: messages with roles", True),
        ({"messages": CHAT, "tools": [], "system": ""}, "chat", "messages, with system and tools: messages", True),
        ({"conversations": [{"from": "human", "value": "a"}]}, "chat", "as ShareGPT writes them", True),
        ({"prompt": "a", "completion": "b"}, "prompt_completion", "a prompt and its completion", False),
        ({"prompt": CHAT[:1], "completion": CHAT[1:]}, "prompt_completion", "its completion as messages", True),
        ({"prompt": CHAT[:1], "completion": "b"}, "prompt_completion", "its completion as messages", True),
        ({"messages": None, "text": "a"}, "text", "text: plain texts", False),
        ({"prompt": "a", "completion": '[{"x": 1}]'}, "prompt_completion", "a prompt and its completion", False),
        ({"instruction": "a", "input": "", "output": "b"}, "prompt_completion", "with input: an instruction", False),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference", "a prompt with two answers", False),
        ({"chosen": CHAT, "rejected": CHAT}, "preference", "two chats that begin alike", True),
        ({"prompt": "a", "chosen": CHAT, "rejected": CHAT, "messages": CHAT}, "preference", "as messages", True),
    ],
)
def test_formats_are_told_with_the_reason(row: dict[str, Any], kind: str, reason: str, messages: bool) -> None:
    found = detect_format(row, [row])
    assert (found.kind, found.has_messages) == (kind, messages) and reason in found.reason
    assert all(name in row for name in found.columns)
    assert found.has_instruction == ("instruction" in row)


@pytest.mark.parametrize(
    ("row", "asked", "what"),
    [
        ({"text": "a", "messages": CHAT}, "auto", r"chat \(messages.*text \(text.*\n.*data\.row_format=chat"),
        ({"body": "a", "n": 1}, "auto", r"columns are 'body', 'n', and no row format.*\n.*data\.columns\.text=body"),
        ({"text": "a"}, "chat", r"'text', and no row format.*messages \(.*\n.*data\.columns\.conversations=text"),
        ({"messages": "a"}, "auto", "messages should hold lists of messages with roles, and in the first rows"),
        ({"messages": []}, "chat", "messages should hold lists of messages with roles"),
        ({"text": CHAT}, "text", r"text should hold plain texts, .*\n.*data\.row_format=chat"),
        ({"chosen": "a", "rejected": "b"}, "preference", "chosen and rejected should hold lists of messages"),
        ({}, "auto", "no row format"),
    ],
)
def test_what_is_unclear_is_told_with_the_columns(row: dict[str, Any], asked: Any, what: str) -> None:
    with pytest.raises(DataError, match=what):
        detect_format(row, [row], asked)


@pytest.mark.parametrize("asked", ["chat", "text"])
def test_the_settings_decide_between_several(asked: Format) -> None:
    row = {"text": "a", "messages": CHAT}
    found = detect_format(row, [row], asked)
    assert found.kind == asked and found.reason.startswith(f"data.row_format asks for {asked}")


def test_without_a_row_the_columns_decide() -> None:
    assert detect_format(["messages", "id"], []).kind == "chat"


def test_instructions() -> None:
    assert instruction_prompt({"instruction": "do", "input": "this"}) == "do\n\nthis"
    assert instruction_prompt({"instruction": "do", "input": ""}) == instruction_prompt({"instruction": "do"}) == "do"
