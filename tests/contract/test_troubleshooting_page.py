"""Messages that the troubleshooting page quotes are messages that drumline gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# A message that is written over several lines is one text.
SOURCE = "\n".join(re.sub(r'"\n\s*f?"', "", path.read_text()) for path in (ROOT / "src").rglob("*.py"))


def quoted_in(page: str) -> list[str]:
    """What stands between backticks in the first column of tables of messages."""
    found, of_messages = [], False
    for line in page.splitlines():
        first = line.removeprefix("|").split("|")[0]
        if not line.startswith("|"):
            of_messages = False
        elif "message |" in line and "what to do" in line:
            of_messages = True
        elif of_messages:
            found += re.findall(r"`([^`]+)`", first)
    return found


def unknown_parts(message: str, source: str) -> list[str]:
    """Parts of a message, which `...` stands between, that no source file has."""
    return [part for part in (part.strip(" ,;?") for part in message.split("...")) if part not in source]


@pytest.mark.parametrize("message", quoted_in(PAGE))
def test_a_quoted_message_exists(message: str) -> None:
    assert not unknown_parts(message, SOURCE)


def test_the_tables_are_read() -> None:
    page = "| message | what to do |\n|---|---|\n| `one ... two` or `three` | `four` |\n\n| symptom | |\n| `five` | |\n"
    assert quoted_in(page) == ["one ... two", "three"]
    assert unknown_parts("one ... two", "one three") == ["two"]
    assert len(quoted_in(PAGE)) > 20
