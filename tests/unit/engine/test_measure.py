from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MinMaxMetric
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef

from drumline.engine.measure import Measurement
from drumline.errors import ConfigError
from drumline.launcher.world import World
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Alone

CPU = torch.device("cpu")
ALONE = Groups(World(0, 1, 0, 1, None, "python", "python"), CPU, Alone(), None, owns_default=False)
OUTPUTS, LABELS = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.5, 3.0])


class Measured:
    """A task with these metrics, each updated with outputs and batch."""

    def __init__(self, **metrics: Metric) -> None:
        self._metrics = metrics

    def metrics(self) -> dict[str, Metric]:
        return self._metrics

    def measure(self, metrics: Mapping[str, Metric], outputs: Tensor, batch: Tensor) -> None:
        for metric in metrics.values():
            metric.update(outputs, batch)


def measurement(prefix: str = "", **metrics: Metric) -> Measurement:
    task: Any = Measured(**metrics)
    return Measurement(task, CPU, prefix)


def test_values_are_those_of_torchmetrics() -> None:
    measured = measurement(mse=MeanSquaredError(), r=PearsonCorrCoef())
    assert not measured.has_rows
    for i in range(3):
        measured.add(OUTPUTS[i : i + 1], LABELS[i : i + 1])
    assert measured.has_rows
    assert measured.values(ALONE) == {
        "mse": pytest.approx(float((OUTPUTS - LABELS).square().mean())),
        "r": pytest.approx(float(torch.corrcoef(torch.stack([OUTPUTS, LABELS]))[0, 1])),
    }


def test_a_metric_inside_another_is_merged_too() -> None:
    wrapped = MinMaxMetric(MeanSquaredError())
    measured = measurement(mse=wrapped)
    measured.add(OUTPUTS, LABELS)
    with pytest.raises(ConfigError, match="the metric mse gave a dict"):
        measured.values(ALONE)
    assert isinstance(wrapped._base_metric, MeanSquaredError)
    assert float(wrapped._base_metric.compute()) == pytest.approx(1.25 / 3)


def test_a_task_without_metrics_has_no_values() -> None:
    task: Any = object()
    measured = Measurement(task, CPU)
    assert not measured.wants_outputs
    assert measured.values(ALONE) == {}


def test_names_have_the_learners_before_them() -> None:
    measured = measurement("critic/", mse=MeanSquaredError())
    measured.add(OUTPUTS, LABELS)
    assert list(measured.values(ALONE)) == ["critic/mse"]


def test_a_name_of_the_lines_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="a metric is called 'count'"):
        measurement(count=MeanSquaredError())


def test_a_value_a_class_is_refused() -> None:
    measured = measurement(accuracy=MulticlassAccuracy(3, average=None))
    measured.add(torch.tensor([0, 1]), torch.tensor([0, 2]))
    with pytest.raises(ConfigError, match=r"accuracy gave shape \[3\], not one number"):
        measured.values(ALONE)
