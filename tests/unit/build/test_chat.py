"""The process that answers, from line to line, with a model whose words are known."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from drumline.build.chat import Questions, converse
from drumline.data.chat import Message
from drumline.errors import ConfigError
from drumline.models.writing import Answer, Wishes


class Echo:
    """Says the last message back, a letter at a time."""

    def answer(self, messages: Sequence[Message], wishes: Wishes, say: Callable[[str], bool]) -> tuple[str, Answer]:
        words = messages[-1]["content"]
        if words == "?":
            raise ConfigError("not that", "ask for something else")
        said = ""
        for letter in words[: wishes.max_new_tokens]:
            said += letter
            if not say(letter):
                return said, Answer(tuple(map(ord, said)), "stopped", 0.5)
        return said, Answer(tuple(map(ord, said)), "end", 0.5)


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def ask(words: str) -> dict[str, Any]:
    return {"ask": [{"role": "user", "content": words}]}


def test_pieces_come_before_the_whole_and_an_error_does_not_end_it() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as questions, os.fdopen(read) as source:
        questions.write(lines(ask("hey"), ask("?"), ask("ab")))
        questions.flush()
        out: list[dict[str, Any]] = []
        over = threading.Event()

        def take(record: dict[str, Any]) -> None:
            out.append(record)
            if len([each for each in out if "text" not in each]) == 3:
                over.set()

        thread = threading.Thread(target=converse, args=(Echo(), Questions(source), Wishes(max_new_tokens=3), take))
        thread.start()
        assert over.wait(5)
        questions.close()
        thread.join(5)
    assert [record["text"] for record in out if "text" in record] == list("heyab")
    kept = [record for record in out if "text" not in record]
    assert kept[0] == {"done": {"answer": "hey", "tokens": 3, "seconds": 0.5, "ended": "end"}}
    assert kept[1] == {"problem": "not that", "fix": "ask for something else", "code": "config"}
    assert kept[2]["done"]["answer"] == "ab"


def test_an_answer_is_stopped_and_the_next_one_is_not() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as questions, os.fdopen(read) as source:
        asked = Questions(source)
        questions.write(lines(ask("a")))
        questions.flush()
        assert asked.next() == ask("a")
        assert asked.goes_on()
        questions.write(lines({"stop": True}, ask("b")))
        questions.flush()
        assert asked.next() == ask("b")
        assert asked.goes_on()
        questions.close()
        assert asked.next() is None
    assert not asked.goes_on()


def test_who_has_gone_wants_no_answer() -> None:
    asked = Questions(io.StringIO(lines(ask("abc"))))
    asked._thread.join(5)
    assert not asked.goes_on()
    assert asked.next() == ask("abc")
    assert not asked.goes_on()
