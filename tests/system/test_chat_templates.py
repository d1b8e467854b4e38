"""Chats of a real model's tokenizer are the tokens that transformers makes of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import transformers

from drumline.data.jinja_templates import PACKED, find_template
from drumline.data.learned_tokens import ChatTokens
from drumline.data.templates import load_template
from drumline.data.tokenizers import HuggingFaceTokenizer

pytestmark = pytest.mark.system

CHATS: list[list[dict[str, Any]]] = [
    [
        {"role": "system", "content": "You sell shoes."},
        {"role": "user", "content": "An ad for boots, please."},
        {"role": "assistant", "content": "Boots that walk you home \U0001f97e.\n\nWarm & dry."},
        {"role": "user", "content": "  Shorter.  "},
        {"role": "assistant", "content": "Walk home warm."},
    ],
    [
        {"role": "user", "content": "caf\u00e9 \u65e5\u672c"},
        {"role": "assistant", "content": "def f(x):\n    return x"},
    ],
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """SmolLM2, which `make assets` fetches."""
    assets = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert assets, "run these tests with: make assets test-system"
    return Path(assets) / "smollm2"


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.mark.parametrize("name", [None, *PACKED])
def test_ids_and_masks_are_those_of_transformers(folder: Path, theirs: Any, name: str | None) -> None:
    tokenizer = HuggingFaceTokenizer(folder)
    template = load_template(name, tokenizer)
    source = find_template(name, folder).source
    for chat in CHATS:
        template.check(chat)
        ids, learned = ChatTokens(template, tokenizer, 10_000)({"messages": chat})
        made = theirs.apply_chat_template(
            chat, chat_template=source, tokenize=True, return_dict=True, return_assistant_tokens_mask=name is not None
        )
        prompt = theirs.apply_chat_template(
            chat[:-1], chat_template=source, tokenize=True, return_dict=True, add_generation_prompt=True
        )
        assert template.prompt(chat[:-1]).tolist() == prompt["input_ids"]
        if name == "llama3":
            # This tokenizer joins two line ends at the end of a prompt, and not before words. What the model is asked
            # with is what counts, so that an answer in the midst of a chat stands after the joined ones too.
            assert theirs.decode(ids.tolist()) == theirs.decode(made["input_ids"])
            continue
        assert ids.tolist() == made["input_ids"]
        assert name is None or learned.astype(int).tolist() == made["assistant_masks"]
        # What the model is asked with is what it has learned to answer.
        assert ids[: len(prompt["input_ids"])].tolist() == prompt["input_ids"] and learned[len(prompt["input_ids"])]


def test_the_models_own_template_gives_the_assistants_words(folder: Path, theirs: Any) -> None:
    tokenizer = HuggingFaceTokenizer(folder)
    ids, learned = load_template(None, tokenizer).render(CHATS[0])
    said = [message["content"] + "<|im_end|>" for message in CHATS[0] if message["role"] == "assistant"]
    assert theirs.decode(ids[learned].tolist()) == "".join(said)
