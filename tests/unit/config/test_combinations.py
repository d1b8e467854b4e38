"""Which data, task and model go together."""

from __future__ import annotations

import pytest

from drumline.config.combinations import combination_problems
from drumline.config.load import load_config

DATA = {
    "text": "{kind: text, train: [a.txt]}",
    "records": "{kind: records, train: [a.csv]}",
    "text_folders": "{kind: text_folders, train: [a]}",
    "image_folders": "{kind: image_folders, train: [a]}",
    "datasets": "{kind: datasets, path: a}",
    "random_tokens": "{kind: random_tokens}",
}
MODELS = {
    "decoder": "{kind: decoder}",
    "huggingface": "{kind: huggingface, path: a}",
    "cnn": "{kind: cnn}",
    "ngrams": "{kind: ngrams}",
    "python": "{kind: python, file: a.py}",
}
GOOD = [
    ("text", "language_modelling", "decoder"),
    ("random_tokens", "language_modelling", "huggingface"),
    ("records", "language_modelling", "decoder"),
    ("records", "classification", "ngrams"),
    ("records", "contrastive", "ngrams"),
    ("records", "token_classification", "huggingface"),
    ("records", "sequence_to_sequence", "huggingface"),
    ("text_folders", "regression", "ngrams"),
    ("image_folders", "classification", "cnn"),
    ("image_folders", "classification", "huggingface"),
    ("datasets", "multi_label", "cnn"),
    ("datasets", "multi_label", "ngrams"),
    ("text", "classification", "python"),
]
BAD = [
    (
        "text",
        "classification",
        "huggingface",
        "task.kind",
        "running text",
        "language_modelling, or data.kind to records",
    ),
    ("image_folders", "multi_label", "cnn", "task.kind", "one class an image", "classification or regression"),
    ("text_folders", "contrastive", "ngrams", "task.kind", "one class a text", "data.kind to records"),
    (
        "records",
        "classification",
        "decoder",
        "model.kind",
        "no output for classification",
        "cnn, ngrams or huggingface",
    ),
    ("records", "classification", "cnn", "model.kind", "cnn reads images", "image_folders or datasets"),
    (
        "image_folders",
        "classification",
        "ngrams",
        "model.kind",
        "ngrams reads texts",
        "records, text_folders or datasets",
    ),
    ("records", "token_classification", "ngrams", "model.kind", "no output for token_classification", "huggingface"),
]


def problems(data: str, task: str, model: str) -> list[str]:
    config = load_config(None, [f"data={DATA[data]}", f"task={{kind: {task}}}", f"model={MODELS[model]}"])
    return [f"{problem}; {problem.fix}" for problem in combination_problems(config)]


@pytest.mark.parametrize(("data", "task", "model"), GOOD)
def test_what_goes_together(data: str, task: str, model: str) -> None:
    assert problems(data, task, model) == []


@pytest.mark.parametrize(("data", "task", "model", "key", "what", "fix"), BAD)
def test_what_does_not_is_told_with_the_way_out(
    data: str, task: str, model: str, key: str, what: str, fix: str
) -> None:
    [problem] = problems(data, task, model)
    assert problem.startswith(f"{key}: ") and what in problem.partition("; ")[0] and fix in problem.partition("; ")[2]


def test_nothing_is_said_without_a_data_section() -> None:
    assert list(combination_problems(load_config(None, ["task={kind: regression}"]))) == []
