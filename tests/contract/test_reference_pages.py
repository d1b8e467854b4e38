"""The reference pages are made from what they describe, and leave nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from pydantic import BaseModel

import drumline
from drumline.config.fields import all_keys
from drumline.config.inference import InferenceConfig
from drumline.config.page import prediction_page, service_page
from drumline.config.service import ServiceConfig
from tests.contract import write_commands, write_rest
from tests.contract.test_config_described import undescribed

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "service-config.md": service_page,
    "predict-config.md": prediction_page,
    "commands.md": write_commands.page,
    "rest.md": write_rest.page,
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_what_would_be_made_now(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"docs/{name} is old; write it: make docs"


def is_kind(name: str, sections: Iterable[str]) -> bool:
    """Whether a setting is what chooses between kinds, which stand in headings."""
    section, _, last = name.rpartition(".")
    return last == "kind" and any(title.startswith(f"{section}, kind: ") for title in sections)


@pytest.mark.parametrize(
    ("root", "name"), [(ServiceConfig, "service-config.md"), (InferenceConfig, "predict-config.md")]
)
def test_every_setting_is_described_and_on_the_page(root: type[BaseModel], name: str) -> None:
    assert undescribed(root) == []
    page = PAGES[name]()
    sections = {part.split("\n", 1)[0].lstrip("# "): part for part in page.split("\n#")}
    missing = []
    for *above, key in all_keys(root):
        dotted = ".".join(map(str, above)) or next(iter(sections))
        texts = [text for title, text in sections.items() if title == dotted or title.startswith(f"{dotted}, kind: ")]
        own = ".".join(map(str, (*above, key)))
        if not any(f"\n| `{key}` |" in text for text in texts) and own not in sections and not is_kind(own, sections):
            missing.append(f"{dotted}: {key}")
    assert missing == []


def test_the_library_page_has_every_public_name() -> None:
    page = (DOCS / "library.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: drumline\.(\w+)$", page, re.MULTILINE)) == set(drumline.__all__)
