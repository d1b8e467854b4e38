"""What can be learned from rows with these columns."""

from __future__ import annotations

import pytest

from drumline.config.finetuning_task import ColumnSeen, Family, choose_task
from drumline.errors import ConfigError

TEXT = ColumnSeen(("text",))
CLASS = ColumnSeen(("text",), 3)
LIST = ColumnSeen(("list",), 5)
NUMBER = ColumnSeen(("number", "whole number"))


def few(count: int | None) -> ColumnSeen:
    """Whole numbers with so many different values."""
    return ColumnSeen(("whole number",), count)


@pytest.mark.parametrize(
    ("columns", "family", "task", "mapping"),
    [
        ({"text": TEXT}, "causal", "language_modelling", {}),
        ({"body": TEXT, "id": few(None)}, "causal", "language_modelling", {"text": "body"}),
        ({"messages": LIST, "label": CLASS, "text": TEXT}, "causal", "language_modelling", {}),
        ({"conversations": LIST, "id": TEXT}, "causal", "language_modelling", {}),
        ({"prompt": TEXT, "completion": TEXT}, "causal", "language_modelling", {}),
        (
            {"question": TEXT, "answer": TEXT},
            "causal",
            "language_modelling",
            {"prompt": "question", "completion": "answer"},
        ),
        ({"instruction": TEXT, "input": TEXT, "output": TEXT}, "causal", "language_modelling", {}),
        ({"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}, "causal", "preference", {}),
        ({"messages": LIST, "chosen": LIST, "rejected": LIST}, "causal", "preference", {}),
        ({"text": TEXT, "label": CLASS}, "encoder", "classification", {}),
        ({"text": TEXT, "label": CLASS}, "causal", "classification", {}),
        ({"review": TEXT, "sentiment": CLASS}, "encoder", "classification", {"text": "review", "label": "sentiment"}),
        ({"text": TEXT, "labels": LIST}, "encoder", "multi_label", {"label": "labels"}),
        ({"text": TEXT, "score": NUMBER}, "encoder", "regression", {"label": "score"}),
        ({"text": TEXT, "rating": few(5)}, "encoder", "classification", {"label": "rating"}),
        ({"text": TEXT, "rating": few(101)}, "encoder", "regression", {"label": "rating"}),
        ({"text": TEXT, "rating": few(None)}, "encoder", "regression", {"label": "rating"}),
        (
            {"premise": TEXT, "hypothesis": TEXT, "label": few(3)},
            "encoder",
            "classification",
            {"text": "premise", "text_pair": "hypothesis"},
        ),
        ({"text": TEXT, "text_pair": TEXT, "label": few(2)}, "encoder", "classification", {"text_pair": "text_pair"}),
        ({"tokens": LIST, "tags": LIST}, "encoder", "token_classification", {}),
        ({"anchor": TEXT, "positive": TEXT}, "encoder", "contrastive", {}),
        ({"source": TEXT, "target": TEXT}, "encoder_decoder", "sequence_to_sequence", {}),
        (
            {"article": TEXT, "highlights": TEXT},
            "encoder_decoder",
            "sequence_to_sequence",
            {"source": "article", "target": "highlights"},
        ),
        (
            {"source": TEXT, "target": TEXT},
            "causal",
            "language_modelling",
            {"prompt": "source", "completion": "target"},
        ),
    ],
)
def test_the_task_follows_from_columns_and_model(
    columns: dict[str, ColumnSeen], family: Family, task: str, mapping: dict[str, str]
) -> None:
    found = choose_task(columns, family)
    assert (found.task, dict(found.columns)) == (task, mapping)
    assert set(found.texts) <= set(columns) and found.texts
    assert all(name in found.why for name in found.texts)


def test_what_a_row_is_goes_with_it() -> None:
    forms = {
        "text": {"text": TEXT},
        "chat": {"messages": LIST},
        "prompt_completion": {"text": TEXT, "instruction": TEXT, "output": TEXT},
        "auto": {"prompt": TEXT, "chosen": TEXT, "rejected": TEXT},
    }
    assert {name: choose_task(columns, "causal").row_format for name, columns in forms.items()} == {
        name: name for name in forms
    }


def test_a_task_that_is_asked_for_comes_before_what_the_columns_would_say() -> None:
    labelled = {"text": TEXT, "label": few(4)}
    assert choose_task(labelled, "causal", "language_modelling").task == "language_modelling"
    assert choose_task(labelled, "encoder", "regression").task == "regression"
    assert choose_task({**labelled, "messages": LIST}, "encoder", "classification").task == "classification"


def test_long_texts_are_no_label() -> None:
    assert choose_task({"text": TEXT, "topic": TEXT}, "causal").task == "language_modelling"


@pytest.mark.parametrize("asked", [None, "language_modelling", "regression"])
@pytest.mark.parametrize("more", [{}, {"1": few(2)}, {"spam": CLASS}])
def test_a_text_in_the_place_of_a_name_is_neither_chosen_nor_shown(
    asked: str | None, more: dict[str, ColumnSeen]
) -> None:
    first = "my sister owes the bank nine thousand"
    with pytest.raises(ConfigError, match=r"'\(a name of 37 characters\)'") as refused:
        choose_task({first: TEXT, **more}, "causal", asked)
    assert "sister" not in str(refused.value) and "a table begins with a line of names" in refused.value.fix
    assert choose_task({first: few(None), "body": TEXT}, "causal").texts == ("body",)


@pytest.mark.parametrize(
    ("columns", "family", "asked", "words"),
    [
        ({"a": TEXT, "b": TEXT}, "causal", None, "'a' and 'b'"),
        ({"text": TEXT}, "encoder", None, "the model is an encoder"),
        ({"messages": LIST}, "encoder_decoder", None, "the model is encoder and decoder"),
        ({"text": TEXT}, "encoder_decoder", None, "'text'"),
        ({"text": TEXT}, "encoder", "classification", "--task classification"),
        ({"text": TEXT, "label": CLASS}, "causal", "preference", "chosen: ..., rejected: ..."),
        ({"text": TEXT}, "causal", "nonsense", "--task nonsense"),
        ({}, "causal", None, "none"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_the_columns(
    columns: dict[str, ColumnSeen], family: Family, asked: str | None, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        choose_task(columns, family, asked)
    assert words in str(refused.value)
