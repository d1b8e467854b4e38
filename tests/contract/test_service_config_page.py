"""The reference page of the service's settings is the schema's own text, and leaves none out."""

from __future__ import annotations

from pathlib import Path

from drumline.config.fields import all_keys
from drumline.config.page import service_page
from drumline.config.service import ServiceConfig
from tests.contract.test_config_described import undescribed

PAGE = Path(__file__).parents[2] / "docs" / "service-config.md"


def test_the_page_is_the_schemas() -> None:
    assert PAGE.read_text(encoding="utf-8") == service_page(), "docs/service-config.md is old; write it: make docs"


def test_every_setting_is_described_and_on_the_page() -> None:
    assert undescribed(ServiceConfig) == []
    sections = {part.split("\n", 1)[0].lstrip("# "): part for part in service_page().split("\n#")}
    missing = []
    for *above, name in all_keys(ServiceConfig):
        dotted = ".".join(map(str, above)) or "Settings of the service"
        if f"\n| `{name}` |" not in sections[dotted] and str(name) not in sections:
            missing.append(f"{dotted}: {name}")
    assert missing == []
