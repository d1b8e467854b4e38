"""The table of docs/seeds.md, and that each block has a case that fits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.seeds.blocks import NAMES, blocks_of
from tests.seeds.cases import Case, Mend
from tests.seeds.page import CASES, seeds_page
from tests.seeds.running import program

PAGE = Path(__file__).parents[2] / "docs" / "seeds.md"


def test_each_block_has_a_case_that_fits_it() -> None:
    for name, cases in CASES.items():
        blocks = blocks_of(name)
        assert set(cases) == {block.number for block in blocks}, name
        assert all(program(block, cases[block.number]) for block in blocks)


def test_the_page_tells_of_each_block() -> None:
    assert PAGE.read_text(encoding="utf-8") == seeds_page(), "write it anew: make docs"


def test_a_mend_that_does_not_fit_is_noticed() -> None:
    block = blocks_of(NAMES[0])[0]
    with pytest.raises(ValueError, match="is 0 times in the block, not 1"):
        program(block, Case(mends=(Mend("GPU count", "no such words", ""),)))
