"""Messages in the forms that data sets have them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.data.chat import chat_of, is_messages, messages_of, shared_start, tools_of, without
from drumline.errors import DataError

PLAIN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "value",
    [
        PLAIN,
        [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        [{"role": "user", "content": "a", "from": None, "value": None}, {"from": "assistant", "value": "b"}],
        json.dumps(PLAIN),
        {"role": ["user", "assistant"], "content": ["a", "b"]},
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}],
        [{"role": "user", "content": "a", "tool_calls": None}, {"role": "assistant", "content": "b", "tool_calls": []}],
    ],
)
def test_messages_in_one_form(value: Any) -> None:
    found = [{name: message[name] for name in ("role", "content")} for message in messages_of(value)]
    assert found == PLAIN and is_messages(value)


def test_what_else_a_message_has_is_kept_and_calls_are_objects() -> None:
    calls = [{"id": None, "function": {"name": "f", "arguments": '{"x": 1}'}}, {"name": "g", "arguments": {}}]
    chat = [{"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"}]
    assert messages_of(chat) == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}, {"name": "g", "arguments": {}}],
        }
    ]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "messages is missing"),
        ("a secret", "messages is a str, not a list"),
        ([], "messages is empty"),
        (["a secret"], "message 0 is a str, not an object"),
        ([PLAIN[0], {"content": "a secret"}], "message 1 has no role"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": "a", "tool_calls": "secret"}], "tool_calls is a str, not a list"),
        ({"role": "secret"}, "messages is a dict, not a list"),
        ([{"role": "user", "content": {"secret": 1}}], "has content that is a dict"),
        ([{"role": "user", "content": [{"type": "image", "secret": "a"}]}], "message 0 has a part that is no text"),
    ],
)
def test_what_is_no_chat_is_refused_without_its_words(value: Any, what: str) -> None:
    with pytest.raises(DataError, match=what) as raised:
        messages_of(value)
    assert "secret" not in str(raised.value)


def test_system_and_tools_of_a_row() -> None:
    tools = [{"name": "f"}]
    messages, found = chat_of({"conversations": PLAIN, "system": "s", "tools": json.dumps(tools)})
    assert messages == [{"role": "system", "content": "s"}, *PLAIN] and found == tools
    own = [{"role": "system", "content": "mine"}, *PLAIN]
    assert chat_of({"messages": own, "system": "s", "tools": []}) == (own, None)
    with pytest.raises(DataError, match="tools is a dict"):
        tools_of({"name": "f"})


def test_nulls_that_fill_objects_up_are_dropped_and_those_in_json_stay() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1, "of_another": None}}, "id": None}
    said = {"function": {"name": "g", "arguments": '{"x": null}'}}
    [message] = messages_of([{"role": "assistant", "content": None, "tool_calls": [call, said]}])
    assert message["tool_calls"] == [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"function": {"name": "g", "arguments": {"x": None}}},
    ]
    fields = {"x": {"type": "number", "enum": [1, None]}, "of_another": None}
    assert tools_of([{"name": "f", "parameters": {"properties": fields, "required": None}}]) == [
        {"name": "f", "parameters": {"properties": {"x": {"type": "number", "enum": [1, None]}}}}
    ]
    assert tools_of('[{"name": "f", "default": null}]') == [{"name": "f", "default": None}]


def test_texts_and_numbers_are_no_messages() -> None:
    assert not any(map(is_messages, ("a", "[1]", '[{"a": 1}]', None, [], [1], {"role": "user"})))


def test_prompts_and_answers() -> None:
    other = [*PLAIN[:1], {"role": "assistant", "content": "c"}]
    assert shared_start(PLAIN, other) == PLAIN[:1] and shared_start(PLAIN, PLAIN) == PLAIN[:1]
    assert shared_start(PLAIN, [{"role": "user", "content": "x"}, *other[1:]]) == []
    assert without(PLAIN, PLAIN[:1]) == PLAIN[1:]
    assert without(PLAIN, PLAIN) is None and without(PLAIN, other[1:]) is None
