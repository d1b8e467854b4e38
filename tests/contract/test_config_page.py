"""The reference page of the settings is the schema's own text."""

from __future__ import annotations

import re
from pathlib import Path

from drumline.config.fields import all_keys, field_leaves, kind_of, sections_of
from drumline.config.page import config_page
from drumline.config.schema import RunConfig

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_is_the_schemas() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_page(), "docs/config.md is old; write it anew with: make docs"


def test_every_setting_is_on_the_page() -> None:
    sections: dict[str, str] = {}
    for part in config_page().split("\n#"):
        section = part.split("\n", 1)[0].lstrip("# ").split(",")[0]
        sections[section] = sections.get(section, "") + part
    missing = []
    for *above, name in all_keys(RunConfig):
        dotted = ".".join(map(str, above)) or "Settings"
        row, own_heading = f"\n| `{name}` |", f"{dotted}.{name}".removeprefix("Settings.")
        if name != "kind" and row not in sections[dotted] and own_heading not in sections:
            missing.append(f"{dotted}: {name}")
    assert not missing


def test_every_kind_has_a_table_of_its_own() -> None:
    page = config_page()
    for key, field in RunConfig.model_fields.items():
        kinds = sections_of(field_leaves(field))
        for section in kinds if len(kinds) > 1 else []:
            assert len(re.findall(rf"^### {key}, kind: {kind_of(section)}(?: \(default\))?$", page, re.M)) == 1


def test_markdown_takes_nothing_away_from_the_text() -> None:
    page = config_page()
    assert "runs/\\<name\\>" in page and "[A-Za-z0-9._-]\\*$" in page
