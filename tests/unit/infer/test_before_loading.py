"""What no model is loaded for: a question without words, labels or columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.config.inference import InferenceConfig
from drumline.errors import ConfigError, DataError
from drumline.infer.before_loading import check_named, check_question
from tests.unit.infer.tiny_encoders import config_for


def config(task: Any, **rows: Any) -> InferenceConfig:
    return config_for(Path("m"), task, rows={"files": ["r"], **rows})


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ({"kind": "generate"}, "no prompt"),
        ({"kind": "choose", "labels": ["a", "b"]}, "no prompt"),
        ({"kind": "choose", "prompt": {"prompt": "{text}"}, "labels": ["a"]}, "two labels or more, and there are 1"),
        ({"kind": "choose", "prompt": {"prompt": "{text}"}, "labels": ["a", "a"]}, "'a' twice"),
    ],
)
def test_a_question_without_words_or_answers_is_refused(task: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_question(config(task))


def test_a_strategy_and_whole_chats_ask_something() -> None:
    check_question(config({"kind": "choose", "prompt": {"strategy": "yes_no"}}))
    check_question(config({"kind": "generate", "prompt": {"messages": "chat"}}))
    check_question(config({"kind": "embed"}))


@pytest.mark.parametrize(
    ("task", "rows", "setting"),
    [
        ("embed", {}, "rows.text"),
        ("score", {"text": "words"}, "rows.text"),
        ("classify", {"text": "body", "text_pair": "second"}, "rows.text_pair"),
        ("token_classify", {"text": "body", "label": "truth"}, "rows.label"),
    ],
)
def test_a_column_that_no_row_has_is_named_with_its_setting(task: str, rows: Any, setting: str) -> None:
    with pytest.raises(DataError, match=f"which {setting} names; the rows have id, body"):
        check_named(config({"kind": task}, **rows), ["id", "body"])
    check_named(config({"kind": task}, **rows), [])


def test_images_have_no_text_but_labels() -> None:
    check_named(config({"kind": "classify"}, label="label"), ["path", "label"])
    with pytest.raises(DataError, match=r"rows\.label"):
        check_named(config({"kind": "classify"}, label="truth"), ["path", "label"])
    with pytest.raises(DataError, match="which the prompt names"):
        check_named(config({"kind": "generate", "prompt": {"prompt": "{body}"}}), ["text"])
