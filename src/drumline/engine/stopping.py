"""Early stopping as a pure decision over agreed metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from drumline.config.schema import EarlyStopping
from drumline.errors import ConfigError


@dataclass(frozen=True)
class Patience:
    """Where early stopping stands after some evaluations."""

    best: float | None = None
    waited: int = 0


def after_evaluation(rule: EarlyStopping, state: Patience, metrics: Mapping[str, float]) -> tuple[Patience, bool]:
    """Take in one evaluation; returns the new state and whether to stop. A NaN is no improvement.

    Raises ConfigError when the metric does not exist.
    """
    if rule.metric not in metrics:
        raise ConfigError(
            f"evaluate.early_stopping.metric is {rule.metric!r}, which the evaluation does not give",
            f"use one of {', '.join(sorted(metrics))}",
        )
    value = metrics[rule.metric]
    better = not math.isnan(value) and (
        state.best is None
        or (value < state.best - rule.min_delta if rule.mode == "min" else value > state.best + rule.min_delta)
    )
    if better:
        return Patience(value, 0), False
    waited = state.waited + 1
    return Patience(state.best, waited), waited >= rule.patience
