from __future__ import annotations

from pathlib import Path

import pytest

from tests.seeds.blocks import Block
from tests.seeds.cases import Case
from tests.seeds.darkroom import CASES
from tests.seeds.running import check, every_block

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("block", "case"), every_block("darkroom", CASES))
def test_a_block_runs(block: Block, case: Case, tmp_path: Path, models: Path) -> None:
    check(block, case, tmp_path, models)
