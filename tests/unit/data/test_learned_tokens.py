"""Records of language modelling as ids, which of them are learned, and what long ones lose."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from drumline.data.learned_tokens import (
    AnswerTokens,
    ChatTokens,
    LearnedTokens,
    PreferenceFeatures,
    PreferenceTokens,
    ShiftedFeatures,
    TextTokens,
    start_ids,
)
from drumline.data.row_formats import RowFormat
from drumline.data.templates import load_template
from drumline.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer
from drumline.errors import DataError
from tests.unit.data.chat_tokenizers import byte_level

BYTES = ByteTokenizer()
END = 256
ANSWER = RowFormat("prompt_completion", "", ("prompt", "completion"))
ALPACA = RowFormat("prompt_completion", "", ("instruction", "output"), has_instruction=True)


def with_bos(folder: Path) -> HuggingFaceTokenizer:
    """A tokenizer that puts <s> before each text, as Llama's and Gemma's do."""
    tokenizer = byte_level(folder)
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer._tokenizer.token_to_id("<s>"))]
    )
    tokenizer._tokenizer.save(str(folder / "tokenizer.json"))
    return HuggingFaceTokenizer(folder)


def told(found: tuple[Any, Any]) -> tuple[list[int], list[int]]:
    ids, learned = found
    return ids.tolist(), learned.astype(int).tolist()


def test_a_text_is_learned_with_its_end() -> None:
    assert told(TextTokens(BYTES)({"text": "AB"})) == ([65, 66, END], [1, 1, 1])
    assert told(TextTokens(BYTES)({"text": ""})) == ([END], [1])
    with pytest.raises(DataError, match="text is missing"):
        TextTokens(BYTES)({})


def test_what_a_tokenizer_puts_before_a_text_stands_there_once(tmp_path: Path) -> None:
    tokenizer = with_bos(tmp_path)
    bos, end = (tokenizer._tokenizer.token_to_id(name) for name in ("<s>", "</s>"))
    assert start_ids(tokenizer).tolist() == [bos] and len(start_ids(BYTES)) == 0
    for text in ("a", "<s>a", "a</s>"):
        ids = TextTokens(tokenizer)({"text": text})[0].tolist()
        assert (ids.count(bos), ids[0], ids.count(end), ids[-1]) == (1, bos, 1, end)
    answer = AnswerTokens(tokenizer, None, ANSWER, 5)
    ids, learned = answer({"prompt": "abc", "completion": "de"})
    assert tokenizer.decode(ids[:5]) == "cde" and (ids[0], ids[4]) == (bos, end)
    assert learned.tolist() == [False, False, True, True, True, False, False]
    # What the template writes is all: no second BOS.
    template = load_template("gemma", tokenizer)
    chat = {"messages": [{"role": "user", "content": "<s>"}, {"role": "assistant", "content": "b"}]}
    ids, _ = ChatTokens(template, tokenizer, 99)(chat)
    assert ids.tolist().count(bos) == 1


def test_of_a_prompt_and_its_completion_the_completion_is_learned() -> None:
    encode = AnswerTokens(BYTES, None, ANSWER, 9)
    assert told(encode({"prompt": "AB", "completion": "C"})) == ([65, 66, 67, END], [0, 0, 1, 1])
    row = ShiftedFeatures(encode, 9)({"prompt": "AB", "completion": "C"})
    assert row["labels"].tolist() == [-100, 67, END, -100]
    encode = AnswerTokens(BYTES, None, ALPACA, 99)
    ids, learned = encode({"instruction": "A", "input": "B", "output": "C"})
    assert BYTES.decode(ids) == "A\n\nB\n\nC" and BYTES.decode(ids[learned]) == "C"


@pytest.mark.parametrize(
    ("context", "kept", "learned"),
    [
        (6, [66, 67, 68, 120, 121, END], [0, 0, 0, 1, 1, 1]),
        (4, [68, 120, 121, END], [0, 1, 1, 1]),
        # One token of the prompt stays; then the completion loses its end.
        (3, [68, 120, 121], [0, 1, 1]),
    ],
)
def test_too_long_a_prompt_loses_its_beginning_and_what_is_lost_can_be_counted(
    context: int, kept: list[int], learned: list[int]
) -> None:
    ids, mask = told(AnswerTokens(BYTES, None, ANSWER, context)({"prompt": "ABCD", "completion": "xy"}))
    assert (ids[:context], mask[:context]) == (kept, learned)
    assert sorted(ids) == sorted([65, 66, 67, 68, 120, 121, END])


def test_messages_as_prompt_and_completion(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    encode = AnswerTokens(tokenizer, load_template("chatml", tokenizer), ANSWER, 999)
    user, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    rows: list[dict[str, Any]] = [
        {"prompt": [user], "completion": [said]},
        {"prompt": "a", "completion": "b"},
        {"prompt": [user], "completion": [user, said]},
    ]
    found = [encode(row) for row in rows]
    for ids, learned in found:
        assert ids.tolist() == found[0][0].tolist()
        assert tokenizer._tokenizer.decode(ids[learned].tolist(), skip_special_tokens=False) == "b<|im_end|>"
    # An earlier answer belongs to the prompt.
    ids, learned = encode({"prompt": [user, said, user], "completion": [said]})
    assert learned.sum() == found[0][1].sum() and learned[-20:].any()


def test_of_a_chat_that_is_too_long_something_learned_is_left(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    chat = {
        "messages": [
            {"role": "user", "content": "u" * 40},
            {"role": "assistant", "content": "first"},
            {"role": "user", "content": "v"},
            {"role": "assistant", "content": "second"},
        ]
    }
    template = load_template("chatml", tokenizer)
    whole, _ = template.render(chat["messages"])

    def kept(context: int, *, keep_last: bool) -> str:
        own = load_template("chatml", tokenizer, "last") if keep_last else template
        ids, learned = ChatTokens(own, tokenizer, context, keep_last=keep_last)(chat)
        assert sorted(ids.tolist()) == sorted(whole.tolist())
        return tokenizer.decode(ids[:context][learned[:context]])

    assert kept(len(whole) - 4, keep_last=False) == "firstseco"
    assert kept(30, keep_last=False).startswith("first")
    assert kept(30, keep_last=True) == "second"


def test_pairs(tmp_path: Path) -> None:
    features = PreferenceFeatures(PreferenceTokens(BYTES, None, 9))
    row = features({"prompt": "AB", "chosen": "C", "rejected": "DE"})
    assert {name: part["input_ids"].tolist() for name, part in row.items()} == {
        "chosen": [65, 66, 67, END],
        "rejected": [65, 66, 68, 69, END],
    }
    assert row["rejected"]["labels"].tolist() == [-100, 68, 69, END, -100]
    # Both lose as much of the prompt.
    row = PreferenceFeatures(PreferenceTokens(BYTES, None, 4))({"prompt": "AB", "chosen": "C", "rejected": "DE"})
    assert {name: part["input_ids"].tolist() for name, part in row.items()} == {
        "chosen": [66, 67, END],
        "rejected": [66, 68, 69, END],
    }
    row = PreferenceFeatures(PreferenceTokens(BYTES, None, 3))({"prompt": "AB", "chosen": "C", "rejected": "DEF"})
    assert [len(part["input_ids"]) for part in row.values()] == [3, 3]
    assert PreferenceTokens(BYTES, None, 9).lengths({"prompt": "AB" * 9, "chosen": "C", "rejected": "DE"}) == (20, 21)
    tokenizer = byte_level(tmp_path)
    chats = PreferenceFeatures(PreferenceTokens(tokenizer, load_template("chatml", tokenizer), 99))
    user = {"role": "user", "content": "a"}
    pair = {name: [user, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    implicit, explicit = chats(pair), chats({"prompt": "a", "chosen": "chosen", "rejected": "rejected"})
    for name, part in implicit.items():
        assert part["input_ids"].tolist() == explicit[name]["input_ids"].tolist()
        labels = part["labels"][part["labels"] != -100]
        assert tokenizer.decode(labels.tolist()) == name
    with pytest.raises(DataError, match="do not begin alike"):
        chats({**pair, "rejected": [{"role": "user", "content": "b"}, *pair["rejected"][1:]]})


def test_they_go_to_loader_processes_and_their_keys_tell_what_decides(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    template = load_template("chatml", tokenizer)
    made: list[LearnedTokens] = [
        TextTokens(tokenizer),
        TextTokens(BYTES),
        ChatTokens(template, tokenizer, 9),
        ChatTokens(template, tokenizer, 9, keep_last=True),
        ChatTokens(load_template("phi3", tokenizer), tokenizer, 9),
        AnswerTokens(tokenizer, None, ANSWER, 9),
        AnswerTokens(tokenizer, template, ANSWER, 9),
        AnswerTokens(tokenizer, None, ALPACA, 9),
        AnswerTokens(tokenizer, None, ANSWER, 8),
    ]
    assert len({tuple(each.key) for each in made}) == len(made)
    record = {"text": "a", "messages": [{"role": "assistant", "content": "b"}], "prompt": "p", "completion": "c"}
    record |= {"instruction": "i", "output": "o"}
    for each in made:
        ids, learned = pickle.loads(pickle.dumps(each))(record)
        assert ids.tolist() == each(record)[0].tolist() and isinstance(learned, np.ndarray)
