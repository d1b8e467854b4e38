from __future__ import annotations

import math

import pytest

from drumline.config.schema import EarlyStopping
from drumline.engine.stopping import Patience, after_evaluation
from drumline.errors import ConfigError


def stops_at(rule: EarlyStopping, values: list[float]) -> int | None:
    """Number of the evaluation after which the run stops."""
    state = Patience()
    for number, value in enumerate(values):
        state, stop = after_evaluation(rule, state, {rule.metric: value})
        if stop:
            return number
    return None


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (EarlyStopping(patience=1), [3.0, 2.0, 2.5], 2),
        (EarlyStopping(patience=2), [3.0, 3.5, 2.0, 2.5, 2.1], 4),
        (EarlyStopping(patience=2), [3.0, 2.9, 2.8, 2.7], None),
        (EarlyStopping(patience=1), [3.0, 3.0], 1),
        (EarlyStopping(patience=1, min_delta=0.5), [3.0, 2.4, 2.0], 2),
        (EarlyStopping(patience=1, min_delta=0.5), [3.0, 2.5], 1),
        (EarlyStopping(metric="accuracy", mode="max", patience=1), [0.1, 0.2, 0.15], 2),
        (EarlyStopping(metric="accuracy", mode="max", patience=1, min_delta=0.1), [0.1, 0.15], 1),
        (EarlyStopping(patience=2), [math.nan, math.nan], 1),
        (EarlyStopping(patience=2), [math.nan, 3.0, math.nan, 2.0], None),
        (EarlyStopping(patience=1), [math.inf, 3.0, math.inf], 2),
    ],
)
def test_when_a_run_stops(rule: EarlyStopping, values: list[float], expected: int | None) -> None:
    assert stops_at(rule, values) == expected


def test_the_best_value_is_remembered() -> None:
    state, _ = after_evaluation(EarlyStopping(), Patience(), {"loss": 2.0})
    state, _ = after_evaluation(EarlyStopping(), state, {"loss": 3.0})
    assert state == Patience(best=2.0, waited=1)


def test_a_metric_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="'f1'") as caught:
        after_evaluation(EarlyStopping(metric="f1"), Patience(), {"loss": 1.0, "accuracy": 0.5})
    assert "accuracy, loss" in caught.value.fix
