"""Named prompts: those that come with the package, and files of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.errors import ConfigError
from drumline.infer.prompt_text import PromptText
from drumline.infer.strategies import STRATEGIES, load_strategy

PACKED = {"yes_no", "sentiment", "hate_speech_policy", "hate_speech_persona", "combined_optimized", "topic"}


def test_the_packed_ones_are_there() -> None:
    assert set(STRATEGIES) >= PACKED


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_packed_one_asks_about_a_text_and_says_its_labels(name: str) -> None:
    strategy = load_strategy(name)
    prompt, system = PromptText(strategy.prompt, name), PromptText(strategy.system or "", name)
    assert "text" in prompt.fields
    assert system.fields == ()
    assert strategy.description.endswith(".")
    assert len(set(strategy.labels)) == len(strategy.labels) > 1
    assert all(label in strategy.prompt + (strategy.system or "") for label in strategy.labels)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "cats.yaml"
    file.write_text("prompt: |-\n  Cats? {text}\nlabels: [yes, no, 'on']\n", encoding="utf-8")
    strategy = load_strategy(str(file))
    assert (strategy.prompt, strategy.labels, strategy.system) == ("Cats? {text}", ["yes", "no", "on"], None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("- a", "a strategy is a mapping"),
        ("system: Be kind.", "prompt: is missing"),
        ("prompt: a\nlabel: [b]", "labels"),
        ("prompt: ''", "prompt"),
    ],
)
def test_faults_of_a_file_are_named_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cats.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as caught:
        load_strategy(str(file))
    assert "cats.yaml" in str(caught.value)


def test_an_unknown_name_gets_the_names_that_there_are() -> None:
    with pytest.raises(ConfigError, match="no strategy named 'sentimnt'") as caught:
        load_strategy("sentimnt")
    assert "did you mean sentiment?" in caught.value.fix
    assert all(name in caught.value.fix for name in PACKED)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_strategy(str(tmp_path / "cats.yaml"))
