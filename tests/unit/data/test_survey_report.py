"""What a look through the rows comes to: event, table and warnings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drumline.data.schema import Column, Schema
from drumline.data.survey import Content, look_through, measure
from drumline.data.survey_report import DataReport, Split

SECRET = "My sister Alma lives at 12 Harbour Street and owes the bank nine thousand"


def split(texts: Sequence[str], labels: Sequence[str] | None = None, num_bad: int = 0) -> Split:
    def content(record: Mapping[str, Any]) -> Content:
        return Content(record["text"], tuple(record["labels"]))

    rows = [
        {"text": text, "labels": [] if labels is None else [label]}
        for text, label in zip(texts, labels or texts, strict=True)
    ]
    found = look_through(rows, content)
    found.lengths = measure(rows, lambda record: (len(record["text"]),), found, 10)
    schema = Schema({"text": Column({"text": len(rows)})}, len(rows), num_bad, (), {"UTF-8": 1})
    return Split.of(schema, found)


def report(train: Split, evaluation: Split | None = None) -> DataReport:
    return DataReport.of(train, evaluation, 0.25)


def test_leakage_is_told_with_row_numbers() -> None:
    found = report(split(["one", "Two", "three"]), split(["four", "two", "ONE", "three"]))
    assert found.event()["leakage"] == {"rows": 1, "rows_normalised": 3, "examples": [[1, 1], [2, 0], [3, 2]]}
    [warning] = found.warnings()
    assert warning.startswith("data.eval: 3 rows are in data.train too, 1 to the letter (row 1 is row 1 there)")


def test_labels_that_a_split_lacks_are_told() -> None:
    found = report(split(["a", "b", "c"], ["x", "y", "x"]), split(["d", "e"], ["x", "z"]))
    event = found.event()
    assert (event["labels_only_in_train"], event["labels_only_in_eval"]) == (["y"], ["z"])
    assert event["train"]["labels"] == {"x": 2, "y": 1}
    assert list(found.warnings()) == [
        "data.eval has no row with label y: their results will be missing",
        "data.train has no row with label z: they cannot be learned",
    ]


def test_the_table_is_short_where_nothing_is_amiss() -> None:
    assert report(split(["one", "two"])).table() == [
        "data report                 train",
        "rows                            2",
        "duplicates                      0",
        "tokens                          6",
        "shortest, median             3, 3",
        "95%, longest                 3, 3",
        "scripts              Latin 100.0%",
    ]
    assert list(report(split(["one", "two"])).warnings()) == []


def test_the_table_has_a_line_for_all_that_is_there() -> None:
    train = split(["one", "one", "ONE", "", "more than ten letters", "два"], ["x", "x", "y", "y", "y", "y"], num_bad=2)
    table = report(train, split(["new"], ["x"])).table()
    lines = {line[:21].strip(): line[21:].split("  ")[0].strip() or line[21:].strip() for line in table}
    told = {title: line[21:].strip() for title, line in zip(lines, table, strict=True)}
    assert [told[title].split("  ")[0].strip() for title in ("rows", "left out, bad", "empty", "duplicates")] == [
        *("6", "2", "1", "1 and 1 alike")
    ]
    assert told["longer than context"].split() == ["1", "-"]
    assert told["tokens cut off"].split() == ["11", "-"]
    assert told["scripts"].startswith("Latin 80.0%, Cyrillic 20.0%")
    assert told["labels"].startswith("y 66.7%, x 33.3%")
    warnings = list(report(train).warnings())
    assert warnings == [
        "data.train: 1 row is without text, the first is row 3",
        "data.train: 1 texts stand there several times, with different labels",
    ]


def test_what_was_not_looked_at_is_said() -> None:
    whole = split(["one", "two", "three"])
    assert whole.survey is not None
    part = replace(whole, survey=replace(whole.survey, num_rows=9))
    assert next(iter(report(part).warnings())).startswith("data.train: 3 of 9 rows were looked at")
    stream = Split.of(Schema({"text": Column({"text": 0})}, None), None)
    assert report(stream).event() == {
        "seconds": 0.25,
        "unit": "rows",
        "train": {"rows": None, "bad_rows": 0},
    }
    assert report(stream).table()[1].split() == ["rows", "?"]
    assert list(report(stream, stream).warnings()) == []


def test_no_text_of_the_data_is_in_any_of_it() -> None:
    texts = [SECRET, SECRET.upper(), "", f"{SECRET}, {SECRET}", SECRET]
    found = report(split(texts, [*texts[:2], "x", "y", "z"]), split([SECRET, SECRET[:-1]], [SECRET, SECRET[:-1]]))
    said = "\n".join([json.dumps(found.event()), *found.table(), *found.warnings()])
    assert "a name of 73 characters" in said, "the labels were told"
    for word in ("sister", "Alma", "Harbour"):
        assert word.lower() not in said.lower()
