from __future__ import annotations

import random
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from drumline.parallel.objective import Objective, add_sums, preserved, run_pass, to_device
from drumline.parallel.precision import INITIAL_SCALE, Precision
from drumline.parallel.strategy import Batch, Loss, MicroBatch, Scale, Sums

CPU, META = torch.device("cpu"), torch.device("meta")


class Squares:
    """Sum of squares over rows, a mean of outputs as auxiliary loss, and two metrics."""

    needs_count = False

    def count(self, batch: Batch) -> int:
        return len(batch)

    def check(self, batch: Batch) -> None:
        pass

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = model(batch)
        return outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Loss:
        return Loss(outputs.square().sum(), outputs.mean(), {"largest": (outputs.max(), 1), "two": (2.0, 1.0)})


class Pair(NamedTuple):
    left: Tensor
    right: Any


def linear() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    return model


X = torch.tensor([[1.0], [3.0]], dtype=torch.float64)


def test_the_objective_is_the_tasks_loss_with_detached_metrics() -> None:
    loss = Objective(linear(), Squares())(X)
    assert (float(loss.total.detach()), float(loss.aux.detach())) == (40.0, 4.0)
    assert loss.total.requires_grad
    assert not loss.metrics["largest"][0].requires_grad
    assert loss.metrics["two"] == (2.0, 1.0)


def gradient(micro_batch: MicroBatch, scale: Scale, precision: str = "fp32") -> float:
    model = linear()
    run_pass(Objective(model, Squares()), micro_batch, scale, Precision(precision, CPU), CPU)
    assert model.weight.grad is not None
    return float(model.weight.grad)


def test_total_and_aux_are_scaled_on_their_own() -> None:
    # d total / d w = sum 2 w x^2 = 40; d aux / d w = mean x = 2, weighed by 2 samples.
    assert gradient(MicroBatch(X, 2, 2), Scale(1 / 4, 0.0)) == 10.0
    assert gradient(MicroBatch(X, 2, 2), Scale(0.0, 1 / 8)) == 0.5
    assert gradient(MicroBatch(X, 2, 2), Scale(1 / 4, 1 / 8)) == 10.5


def test_weight_zero_gives_a_gradient_of_zero() -> None:
    assert gradient(MicroBatch(X, 2, 2, 0), Scale(1 / 4, 1 / 8)) == 0.0


def test_fp16_gradients_are_scaled() -> None:
    assert gradient(MicroBatch(X, 2, 2), Scale(1 / 4, 0.0), "fp16") == 10.0 * INITIAL_SCALE


def test_sums_of_micro_batches() -> None:
    sums: Sums = {}
    objective = Objective(linear(), Squares())
    add_sums(sums, objective(X), MicroBatch(X, 2, 2))
    add_sums(sums, objective(X[:1]), MicroBatch(X[:1], 1, 1))
    add_sums(sums, objective(X), MicroBatch(X, 2, 2, 0))
    assert {name: (float(value), float(weight)) for name, (value, weight) in sums.items()} == {
        "total": (44.0, 3.0),
        "aux": (10.0, 3.0),
        "metric/largest": (8.0, 2.0),
        "metric/two": (4.0, 2.0),
    }
    assert all(value.dtype == torch.float64 and not value.requires_grad for value, _ in sums.values())


def test_to_device_reaches_every_tensor_and_keeps_the_structure() -> None:
    tensor = torch.ones(2)
    batch = {"a": tensor, "b": [tensor, (tensor, "text")], "c": Pair(tensor, None), "d": OrderedDict(e=tensor), "f": 3}
    moved = to_device(batch, META)
    assert moved["a"].device == moved["b"][0].device == moved["b"][1][0].device == META
    assert moved["c"].left.device == moved["d"]["e"].device == META
    assert isinstance(moved["b"], list)
    assert isinstance(moved["b"][1], tuple)
    assert isinstance(moved["c"], Pair)
    assert (moved["b"][1][1], moved["c"].right, moved["f"]) == ("text", None, 3)
    assert batch["a"] is tensor


def test_to_device_takes_other_mappings_and_what_moves_itself() -> None:
    class Own:
        def to(self, device: torch.device) -> str:
            return f"moved to {device}"

    assert to_device(UserDict(x=torch.ones(1)), META)["x"].device == META
    assert to_device([Own()], CPU) == ["moved to cpu"]
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device(packed, META)
    assert isinstance(moved, PackedSequence)
    assert moved.data.device == META
    assert moved.batch_sizes.device == CPU


class Moving(nn.Module):
    """BatchNorm, and a buffer that each pass replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("last", torch.zeros(2))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()[0]
        outputs: Tensor = self.norm(x)
        return outputs


@pytest.mark.parametrize("fails", [True, False])
def test_preserved_puts_buffers_and_random_streams_back(fails: bool) -> None:
    model = Moving()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]

    def run() -> None:
        with preserved(model, CPU):
            model(torch.randn(4, 2))
            assert not torch.equal(model.norm.running_mean, before["norm.running_mean"])  # type: ignore[arg-type]
            random.random()
            np.random.rand()
            if fails:
                raise KeyError("in the pass")

    if fails:
        with pytest.raises(KeyError):
            run()
    else:
        run()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), states[2])
