"""Every file of tests is run by those who name a folder above it: none stands where pytest does not look."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def passed_over(pattern: str) -> list[str]:
    """The folders with tests that this pattern of norecursedirs leaves out."""
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}
    return sorted(str(folder) for folder in folders if any(fnmatch(part, pattern) for part in folder.parts))


def test_no_folder_is_passed_over(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    assert patterns and [folder for pattern in patterns for folder in passed_over(pattern)] == []
    assert passed_over("build") == ["unit/build"]  # as pytest's own list would


def test_every_file_has_a_name_that_is_looked_for(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("python_files")
    others = [
        file
        for file in TESTS.rglob("*.py")
        if "\ndef test_" in file.read_text(encoding="utf-8") and not any(fnmatch(file.name, each) for each in patterns)
    ]
    assert others == []
