from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline.infer.frozen_rows import FrozenRows
from drumline.infer.rows import rows_of, write_rows
from drumline.predictions import PredictionDir


def test_rows_that_take_several_reads_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = PredictionDir(tmp_path)
    write_rows(directory, rows_of([f"row {number}" for number in range(20)]), {})
    rows = FrozenRows(directory)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, place: real(file, min(size, 7), place))
    try:
        assert [row.values["text"] for row in rows.read([3, 4, 5, 19])] == ["row 3", "row 4", "row 5", "row 19"]
    finally:
        rows.close()
