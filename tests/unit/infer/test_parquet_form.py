"""Parquet columns whose values look different from one group of rows to the next."""

from __future__ import annotations

import io
from typing import Any

import pyarrow.parquet
import pytest

from drumline.infer.parquet_form import Parquet

LARGE = 2**60 + 1


def column(*groups: list[Any]) -> tuple[str, list[Any]]:
    """Type and values of a column written as these groups of rows."""
    file = io.BytesIO()
    form = Parquet(file, ["a"])
    for group in groups:
        form.look([{"a": value} for value in group])
    for group in groups:
        form.write([{"a": value} for value in group])
    form.close()
    table = pyarrow.parquet.read_table(io.BytesIO(file.getvalue()))
    return str(table.schema.field("a").type), table.column("a").to_pylist()


@pytest.mark.parametrize(
    ("large", "half", "texts"),
    [
        (LARGE, 1.5, [str(LARGE), "1.5"]),
        (-LARGE, 1.5, [str(-LARGE), "1.5"]),
        ([1, LARGE], [1.5], [f"[1, {LARGE}]", "[1.5]"]),
        ({"x": [{"y": LARGE}]}, {"x": [{"y": 1.5}]}, [f'{{"x": [{{"y": {LARGE}}}]}}', '{"x": [{"y": 1.5}]}']),
    ],
)
def test_integers_too_large_among_fractions_make_a_column_text(large: Any, half: Any, texts: list[str]) -> None:
    assert column([large], [half]) == ("string", texts)
    assert column([half], [None, large]) == ("string", [texts[1], None, texts[0]])


def test_large_integers_beside_fractions_stay_what_they_are() -> None:
    kind, values = column([{"id": LARGE, "p": 1}], [{"id": 1, "p": 0.5}])
    assert kind == "struct<id: int64, p: double>"
    assert values == [{"id": LARGE, "p": 1.0}, {"id": 1, "p": 0.5}]
    assert column([2**53], [0.5]) == ("double", [2.0**53, 0.5])
