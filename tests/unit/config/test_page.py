"""The reference page shows every section: kinds, and sections that stand in lists."""

from __future__ import annotations

import pytest

from drumline.config.page import config_page

PAGE = config_page()


@pytest.mark.parametrize(
    "heading",
    [
        "### task, kind: language_modelling (default)",
        "### task, kind: contrastive",
        "### data, kind: records",
        "### data, kind: image_folders",
        "## data.train, an entry that is a section",
        "## train.optimizer.rules, an entry that is a section",
        "## train.averaging",
    ],
)
def test_each_section_has_one_heading(heading: str) -> None:
    assert PAGE.count(f"\n{heading}\n") == 1


@pytest.mark.parametrize(
    ("heading", "row"),
    [
        ("## data.train,", "| `weight` | a number above 0 | `1.0` |"),
        ("## train.optimizer.rules,", "| `freeze` | true or false | `false` |"),
        ("### data, kind: records", "| `columns` | names with values (each text) | `{}` |"),
        ("### data, kind: records", "| `train` | a list (each entry text or a section) with a length of at least 1 |"),
    ],
)
def test_a_section_lists_its_settings(heading: str, row: str) -> None:
    section = PAGE.split(f"\n{heading}")[1].split("\n#")[0]
    assert row in section
