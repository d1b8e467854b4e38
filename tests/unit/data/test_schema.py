"""What is known of columns: types, nulls, different values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.data import schema as schema_module
from drumline.data.schema import MAX_DISTINCT, Column, Schema, SchemaCounter, merged, renamed, shown_name, told_names
from drumline.errors import DataError


def schema_of(*records: dict[str, Any], num_bad: int = 0, bad_rows: tuple[Path, ...] = ()) -> Schema:
    counter = SchemaCounter()
    for record in records:
        counter.add(record)
    return Schema(counter.columns(), counter.num_rows, num_bad, bad_rows)


def test_types_and_nulls_are_counted_and_a_row_without_the_column_is_null() -> None:
    schema = schema_of({"a": 1, "b": "x"}, {"a": 2.5}, {"a": None, "c": [1]}, {"c": {"d": 1}}, {"a": True})
    assert schema.columns["a"].types == {"whole number": 1, "number": 1, "null": 2, "true or false": 1}
    assert schema.columns["b"].types == {"text": 1, "null": 4}
    assert schema.columns["c"].types == {"list": 1, "object": 1, "null": 3}
    assert schema.columns["b"].num_nulls == 4
    assert schema.num_rows == 5


def test_different_values_are_told_apart_by_type_and_taken_out_of_lists() -> None:
    schema = schema_of({"a": 1, "tags": ["x", "y"]}, {"a": True, "tags": ["x"]}, {"a": "1", "tags": []}, {"a": None})
    assert [(type(value), value) for value in schema.distinct("a") or []] == [(int, 1), (bool, True), (str, "1")]
    assert schema.distinct("tags") == ["x", "y"]
    assert schema.distinct("a", limit=2) is None
    with pytest.raises(KeyError):
        schema.distinct("b")


def test_too_many_or_too_long_values_are_not_kept() -> None:
    many = [{"id": i, "few": i % MAX_DISTINCT, "text": "x" * 300, "lists": [[i]]} for i in range(MAX_DISTINCT + 1)]
    schema = schema_of(*many)
    assert len(schema.distinct("few") or []) == MAX_DISTINCT
    assert schema.distinct("id") is None
    assert schema.distinct("text") is None
    assert schema.distinct("lists") is None


def test_describe_is_short() -> None:
    schema = schema_of(
        {"text": "a", "label": 1}, {"text": "b", "label": None}, num_bad=3, bad_rows=(Path("bad.jsonl"),)
    )
    assert schema.describe() == (
        "2 rows, 3 left out (bad.jsonl)\ntext: text (2 different); label: whole number (1 different, 1 null)"
    )
    assert Schema({"a": Column({"null": 1234}, ())}, 1234).describe() == "1,234 rows\na: empty (1,234 null)"
    assert Schema({"a": Column({"image": 0})}, None).describe() == "rows as they come\na: image"


def test_renaming() -> None:
    record = {"text": "t", "topic": 3, "label": "old", "other": 1}
    assert renamed(record, {"label": "topic"}) == {"text": "t", "label": 3, "other": 1}
    assert renamed(record, {"label": "text", "text": "label"}) == {"topic": 3, "other": 1, "label": "t", "text": "old"}
    assert renamed(record, {"anchor": "text", "positive": "text"})["positive"] == "t"
    assert renamed(record, {"text": "text", "label": "absent"}) == {"text": "t", "topic": 3, "other": 1}
    schema = schema_of(record).renamed({"label": "topic"})
    assert schema.columns["label"].types == {"whole number": 1}
    assert schema.num_rows == 1


def test_a_column_that_must_be_there() -> None:
    schema = schema_of({"text": "t", "topic": 3, "label": None})
    schema.require(["text", "topic"], "data.train")
    with pytest.raises(DataError, match=r"data\.train: no row has a value in column 'label'") as caught:
        schema.require(["text", "label"], "data.train")
    assert "'text', 'topic', 'label'" in caught.value.problem
    with pytest.raises(DataError, match="column 'topc' or 'x'") as caught:
        schema.require(["topc", "x"], "data.train")
    assert "--set data.columns.topc=topic" in caught.value.fix


def test_schemas_of_several_sources_add_up() -> None:
    one = schema_of({"a": 1, "b": "x"}, num_bad=1, bad_rows=(Path("1"),))
    two = schema_of({"a": 1.5}, {"a": 2.5}, num_bad=2, bad_rows=(Path("2"),))
    both = merged([one, two])
    assert (both.num_rows, both.num_bad, both.bad_rows) == (3, 3, (Path("1"), Path("2")))
    assert both.columns["a"].types == {"whole number": 1, "number": 2}
    assert both.columns["b"].types == {"text": 1, "null": 2}
    assert both.distinct("a") == [1, 1.5, 2.5]
    assert merged([one]) is one
    unknown = Schema({"a": Column({"text": 1})}, 1)
    assert merged([one, unknown]).distinct("a") is None


def test_encodings_of_several_sources_add_up() -> None:
    one, two = (Schema({}, 1, encodings=counts) for counts in ({"UTF-8": 2}, {"UTF-8": 1, "UTF-16": 1}))
    assert merged([one, two]).encodings == {"UTF-8": 3, "UTF-16": 1}
    assert one.renamed({"a": "b"}).encodings == {"UTF-8": 2}


def test_ever_new_columns_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "MAX_COLUMNS", 3)
    found = schema_of(*({"text": "x", f"column {i}": i} for i in range(10)))
    assert list(found.columns) == ["text", "column 0", "column 1"]
    assert found.columns["text"].types == {"text": 10}


@pytest.mark.parametrize("name", ["label", "Product name (en)", "x" * 64, "日本語"])
def test_names_are_shown(name: str) -> None:
    assert shown_name(name) == name


@pytest.mark.parametrize("name", ["x" * 65, "my sister owes the bank nine thousand", "two\nlines"])
def test_what_reads_like_a_text_is_not_shown(name: str) -> None:
    assert shown_name(name) == f"(a name of {len(name)} characters)"
    schema = schema_of({name: 1, "b": 2})
    assert name not in schema.describe()
    with pytest.raises(DataError) as caught:
        schema.require(["text"], "data.train")
    assert name not in str(caught.value)
    assert "data.columns.text=b, for instance; a table begins with a line of names" in caught.value.fix


def test_classes_have_names_that_can_be_told() -> None:
    assert told_names(["spam", "my sister owes the bank nine thousand", "x" * 65]) == ("spam", "class 1", "class 2")
