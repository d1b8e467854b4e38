from __future__ import annotations

import pytest

from drumline.errors import DataError
from drumline.infer.prompt_text import PromptText
from drumline.infer.raw_prompt import RawPrompt


def test_runs_are_what_stands_between_the_prompts_own_control_tokens() -> None:
    raw = RawPrompt(PromptText("<s>{a} <{b}</s>", "prompt"), ("<s>", "</s>"))
    assert raw.fill({"a": "1", "b": "s>"}) == ["", "1 <s>", ""]
    assert raw.template == (
        '{{ messages[0].content }}{{ "<s>" }}{{ messages[1].content }}{{ "</s>" }}{{ messages[2].content }}'
    )


def test_without_control_tokens_all_is_one_run() -> None:
    for special in ((), ("<s>",)):
        raw = RawPrompt(PromptText("a {x} b", "prompt"), special)
        assert (raw.fill({"x": 1}), raw.template) == (["a 1 b"], "{{ messages[0].content }}")


def test_a_control_token_that_a_row_would_make_another_is_refused() -> None:
    raw = RawPrompt(PromptText("<s>{a}", "prompt"), ("<s>", "<s>2", "</s>"))
    assert raw.fill({"a": "3"}) == ["", "3"]
    with pytest.raises(DataError, match="make a control token together"):
        raw.fill({"a": "2"})
