"""Settings of rows that contradict the task, the model or each other."""

from __future__ import annotations

import pytest

from drumline.config.combinations import combination_problems
from drumline.config.load import load_config

RECORDS = "kind: records, train: [a.jsonl]"
HUGGING_FACE = "{kind: huggingface, path: a}"


def problems(data: str, task: str = "language_modelling", model: str = HUGGING_FACE) -> list[str]:
    config = load_config(None, [f"data={{{data}}}", f"task={{kind: {task}}}", f"model={model}"])
    return [str(problem) for problem in combination_problems(config)]


@pytest.mark.parametrize(
    ("data", "task"),
    [
        (f"{RECORDS}, packing: packed, template: chatml, learn: last, row_format: chat", "language_modelling"),
        (f"{RECORDS}, template: gemma, row_format: preference", "preference"),
        ("kind: text_folders, train: [a], row_format: text, packing: packed", "language_modelling"),
        ("kind: datasets, path: a, streaming: true, packing: none", "language_modelling"),
        (RECORDS, "classification"),
        (f"{RECORDS}, group_by_length: false", "language_modelling"),
        (f"{RECORDS}, group_by_length: false", "preference"),
        (f"{RECORDS}, group_by_length: true", "classification"),
        ("kind: datasets, path: a, group_by_length: false", "classification"),
        ("kind: datasets, path: a, group_by_length: true", "preference"),
    ],
)
def test_what_goes_together(data: str, task: str) -> None:
    assert problems(data, task) == []


@pytest.mark.parametrize(
    ("data", "task", "what"),
    [
        (f"{RECORDS}, learn: last", "classification", "data.learn: last is for rows that a model learns to write"),
        (f"{RECORDS}, packing: none", "contrastive", "data.packing: none is for rows that a model learns to write"),
        (
            "kind: datasets, path: a, group_by_length: true",
            "classification",
            "data.group_by_length: true, and how long the rows of data.kind datasets are",
        ),
        (f"{RECORDS}, row_format: chat", "preference", "data.row_format: chat, and task.kind preference"),
        (f"{RECORDS}, row_format: preference", "language_modelling", "data.row_format: preference, and task.kind"),
        (f"{RECORDS}, packing: packed", "preference", "data.packing: packed is for language_modelling"),
        (f"{RECORDS}, row_format: text, template: phi3", "language_modelling", "data.template: phi3, and data.row"),
        (
            "kind: text_folders, train: [a], row_format: chat",
            "language_modelling",
            "data.row_format: chat, and data.kind text_folders",
        ),
        (
            "kind: datasets, path: a, streaming: true, packing: packed",
            "language_modelling",
            "data.packing: packed, and of rows that come one after the other",
        ),
    ],
)
def test_what_does_not_is_told(data: str, task: str, what: str) -> None:
    [problem] = problems(data, task)
    assert problem.startswith(what)


def test_packing_needs_a_model_that_keeps_texts_apart() -> None:
    [problem] = problems(f"{RECORDS}, packing: packed", model="{kind: decoder}")
    assert problem.startswith("data.packing: packed, and a model of kind decoder would mix")
