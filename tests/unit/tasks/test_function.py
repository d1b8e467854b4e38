from __future__ import annotations

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.parallel.strategy import Loss
from drumline.tasks.function import FunctionTask, count_samples

X = torch.tensor([[1.0], [2.0], [4.0]])
MODEL = nn.Linear(1, 1, bias=False)
nn.init.constant_(MODEL.weight, 2.0)


def mean_loss(model: nn.Module, batch: Tensor) -> Any:
    return model(batch).mean()


def run(task: FunctionTask, batch: Any = X) -> Loss:
    return task.loss(task.forward(MODEL, batch), batch)


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3, 2),
        (torch.zeros(3, 2), torch.zeros(5)),
        {"name": "text", "scale": torch.tensor(1.0), "x": [torch.zeros(3)]},
        UserDict({"x": torch.zeros(3)}),
        [["a", "b"], {"y": torch.zeros(3)}],
    ],
)
def test_samples_are_the_first_size_of_the_first_tensor(batch: Any) -> None:
    assert count_samples(batch) == 3


@pytest.mark.parametrize("batch", [{}, ["a", "b"], {"scale": torch.tensor(1.0)}, SimpleNamespace(x=X)])
def test_samples_of_a_batch_without_tensors_cannot_be_told(batch: Any) -> None:
    with pytest.raises(ConfigError, match="give count="):
        count_samples(batch)


def test_a_mean_is_weighed_by_samples() -> None:
    task = FunctionTask(mean_loss)
    assert task.count(X) == 3
    assert not task.needs_count
    loss = run(task)
    assert loss.total.item() == 14.0
    loss.total.backward()
    assert MODEL.weight.grad is not None
    assert MODEL.weight.grad.item() == 7.0
    MODEL.weight.grad = None


@pytest.mark.parametrize("as_tensor", [True, False])
def test_a_mean_is_weighed_by_the_users_count(as_tensor: bool) -> None:
    def labelled(batch: Tensor) -> int | Tensor:
        number = (batch > 1).sum()
        return number if as_tensor else int(number)

    task = FunctionTask(lambda model, batch: model(batch[batch > 1][:, None]).mean(), count=labelled)
    assert task.needs_count
    assert type(task.count(X)) is int
    assert task.count(X) == 2
    assert run(task).total.item() == 12.0


def test_an_output_gives_its_loss() -> None:
    task = FunctionTask(lambda model, batch: SimpleNamespace(loss=model(batch).mean(), logits=None))
    assert run(task).total.item() == 14.0


def test_a_loss_record_is_taken_as_it_is() -> None:
    def loss(model: nn.Module, batch: Tensor) -> Loss:
        outputs = model(batch)
        return Loss(outputs.sum(), aux=outputs.square().mean(), metrics={"seen": (3, 1)})

    record = run(FunctionTask(loss))
    assert record.total.item() == 14.0
    assert record.aux is not None
    assert record.aux.item() == 28.0
    assert record.metrics == {"seen": (3, 1)}


def test_samples_can_be_told_for_batches_without_tensors() -> None:
    task = FunctionTask(lambda model, batch: model(X[: len(batch)]).mean(), samples=len)
    assert task.count(["a", "b"]) == 2
    assert not task.needs_count
    assert run(task, ["a", "b"]).total.item() == 6.0


def nothing(model: nn.Module, batch: Tensor) -> Any:
    return None


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (nothing, "returned None"),
        (lambda model, batch: model(batch).mean().item(), "returned a float"),
        (lambda model, batch: (model(batch).mean(), 1), "returned a tuple"),
        (lambda model, batch: SimpleNamespace(loss=None), "returned a SimpleNamespace"),
        (lambda model, batch: model(batch), r"shape \[3, 1\]"),
        (lambda model, batch: Loss(model(batch)), r"shape \[3, 1\]"),
        (lambda model, batch: model(batch).mean().detach(), "no gradient leads back"),
        (lambda model, batch: Loss(model(batch).detach().sum()), "no gradient leads back"),
    ],
)
def test_another_result_is_refused(loss: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run(FunctionTask(loss))


def test_evaluation_needs_no_gradient() -> None:
    with torch.no_grad():
        assert run(FunctionTask(mean_loss)).total.item() == 14.0


@pytest.mark.parametrize("number", [2.0, None, torch.tensor(2.0), torch.tensor([1, 2])])
def test_a_count_that_is_no_whole_number_is_refused(number: Any) -> None:
    task = FunctionTask(mean_loss, count=lambda batch: number)
    with pytest.raises(ConfigError, match="whole number"):
        task.count(X)
