"""A function of one's own: whatever it returns becomes one answer a row, and what cannot is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drumline.errors import ConfigError
from drumline.infer.function import FunctionPredictor
from drumline.infer.records import Row
from tests.unit.infer.tiny_encoders import CPU, answers, prepared

ROWS = [Row(n, {"x": float(n), "name": f"row {n}"}) for n in range(4)]


def predictor(function: Any, collate: Any = None) -> FunctionPredictor:
    return FunctionPredictor(nn.Linear(1, 2), function, CPU, collate)


def test_a_tensor_is_one_prediction_a_row() -> None:
    model = nn.Linear(1, 2)
    own = FunctionPredictor(model, lambda model, batch: model(batch["x"].float()[:, None]), CPU)
    wanted = model(torch.arange(4.0)[:, None]).tolist()
    assert answers(own, ROWS) == [{"prediction": values} for values in wanted]
    assert own.columns == ("prediction",)


@pytest.mark.parametrize(
    "outputs",
    [torch.arange(4), np.arange(4), [0, 1, 2, 3], (np.int64(0), torch.tensor(1), 2, 3), torch.arange(4).bfloat16()],
)
def test_whatever_holds_a_value_a_row(outputs: Any) -> None:
    assert answers(predictor(lambda model, batch: outputs), ROWS) == [{"prediction": n} for n in range(4)]


def test_vectors_stay_arrays_and_tables_become_lists() -> None:
    own = predictor(lambda model, batch: {"vector": torch.ones(4, 3), "table": torch.ones(4, 2, 2)})
    [first, *_] = own.run(prepared(own, ROWS), 1)
    assert isinstance(first["vector"], np.ndarray)
    assert first["vector"].dtype == np.float32
    assert first["table"] == [[1.0, 1.0], [1.0, 1.0]]


def test_a_mapping_gives_columns_of_its_own() -> None:
    own = predictor(lambda model, batch: {"twice": batch["x"] * 2, "names": batch["name"], "more": [{"a": (1,)}] * 4})
    found = answers(own, ROWS)
    assert found[3] == {"twice": 6.0, "names": "row 3", "more": {"a": [1]}}
    assert own.columns == ("twice", "names", "more")


def test_a_collate_of_ones_own_gets_the_rows() -> None:
    own = predictor(lambda model, batch: batch, collate=lambda rows: [row["name"].upper() for row in rows])
    assert answers(own, ROWS[:2]) == [{"prediction": "ROW 0"}, {"prediction": "ROW 1"}]


def test_another_row_stands_in_for_one_that_is_filled_in() -> None:
    seen = []

    def look(model: Any, batch: Any) -> Any:
        seen.append(batch["x"].tolist())
        return batch["x"]

    own = predictor(look)
    rows = prepared(own, ROWS)
    assert own.run([None, rows[1], None, rows[3]], 1) == [{"prediction": 1.0}, {"prediction": 3.0}]
    assert seen == [[1.0, 1.0, 1.0, 3.0]]
    assert own.run([None], 1) == []


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        (torch.zeros(3), "gave 3 values for 4 rows"),
        (torch.tensor(1.0), "gave one number for 4 rows"),
        ([1, 2], "gave 2 values for 4 rows"),
        (None, "gave a NoneType for 4 rows"),
        ({"a": torch.zeros(5)}, "column 'a' gave 5 values for 4 rows"),
        ({"error": [1] * 4}, "a column 'error'"),
        ([{1, 2}] * 4, "gave a set, which JSON does not have"),
    ],
)
def test_what_is_not_one_answer_a_row_is_refused(outputs: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        answers(predictor(lambda model, batch: outputs), ROWS)


def test_a_row_that_could_not_be_read_keeps_its_problem() -> None:
    assert predictor(lambda model, batch: batch).prepare([Row(0, {}, "line 1: no JSON")]) == ["line 1: no JSON"]
