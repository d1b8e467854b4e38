"""The model card as Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from drumline.models.card import Card, Table, license_of, render_card

CAUSAL = Card("ads", "A model.", "text-generation", base="org/base", license="mit", chats=True, version="1.2")


def front(text: str) -> dict[str, object]:
    """What the hub reads."""
    _, matter, _ = text.split("---\n", 2)
    found: dict[str, object] = yaml.safe_load(matter)
    return found


def code(text: str) -> str:
    """The lines of Python in a card."""
    return text.partition("```python\n")[2].partition("```")[0]


def test_the_front_matter_has_what_is_known() -> None:
    assert front(render_card(CAUSAL)) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "org/base",
        "base_model_relation": "finetune",
        "license": "mit",
        "tags": ["drumline"],
    }
    unknown = front(render_card(Card("ads", "A model.", "feature-extraction", adapter=True)))
    assert unknown == {"library_name": "peft", "pipeline_tag": "feature-extraction", "tags": ["drumline"]}


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize(
    "does",
    [
        "text-generation",
        "text2text-generation",
        "text-classification",
        "image-classification",
        "token-classification",
        "feature-extraction",
    ],
)
def test_the_code_is_python_for_each_kind_of_model(does: str, adapter: bool) -> None:
    found = code(render_card(Card("x", "y", does, adapter=adapter, num_labels=3)))
    compile(found, "card", "exec")
    assert ("PeftModel.from_pretrained(model, folder)" in found) == adapter
    assert ("num_labels=3" in found) == adapter
    assert "apply_chat_template" not in found


def test_a_model_that_chats_is_shown_to_chat() -> None:
    assert "apply_chat_template" in code(render_card(CAUSAL))


def test_cells_are_no_markup_and_empty_tables_are_left_out() -> None:
    rows = [["a|b\n<i>*", "1"]]
    tables = [
        Table("Data", ["from", "rows"], rows),
        Table("Results", ["metric"], []),
        Table("Set", ["a"], [["x_y"]], names=True),
    ]
    text = render_card(Card("t", "u", "text-generation", tables=tables))
    assert "| a\\|b \\<i\\>\\* | 1 |" in text
    assert "| `x_y` |" in text
    assert "Results" not in text


def test_the_licence_is_read_from_card_or_config(tmp_path: Path) -> None:
    assert license_of(tmp_path) is None
    (tmp_path / "config.json").write_text('{"license": "bsd"}')
    assert license_of(tmp_path) == "bsd"
    (tmp_path / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Title\nlicense: none\n")
    assert license_of(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text("---\nlicense: [broken\n---\n")
    assert license_of(tmp_path) == "bsd"
