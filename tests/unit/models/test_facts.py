"""The dry count of a model's memory against what a real forward pass keeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import default_collate

from drumline.config.compute import CheckpointingConfig
from drumline.models.decoder import Decoder, DecoderShape
from drumline.models.facts import CPU, FEW, MORE, Case, count_parameters, kept_by_pass, with_activations
from drumline.parallel.checkpointing import apply_checkpointing
from drumline.parallel.objective import Objective
from drumline.parallel.precision import Precision
from drumline.parallel.strategy import Task
from drumline.plan.memory import ModelFacts
from drumline.tasks import Classification, LanguageModelling, choose_task

TOKENS = {"input_ids": torch.arange(32), "labels": torch.arange(32)}
PIXELS = (torch.linspace(-1, 1, 192).view(3, 8, 8), torch.tensor(1))


def decoder(style: Any = "gpt2", num_layers: int = 2, dropout: float = 0.0) -> Decoder:
    return Decoder(DecoderShape(style, num_layers, 4, 4, 64, 256, dropout, True, 512, 32))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 10))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


def encoder() -> nn.Module:
    # With dropout inside attention the CPU has no fused kernel, as GPUs have.
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Flatten(2), nn.Linear(64, 16), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(48, 10)
    )


def case(task: Task, row: Any, precision: str = "fp32", **more: Any) -> Case:
    return Case(task, default_collate([row] * FEW), default_collate([row] * MORE), precision, **more)


def really_kept(model: nn.Module, task: Task, batch: Any, precision: str) -> list[int]:
    """Sizes of the storages that a real pass on the CPU saves for its backward pass, the model's own left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), Precision(precision, CPU).autocast():
        Objective(model, task)(batch)
    return [tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in own]


@pytest.mark.parametrize(
    ("make", "precision"),
    [
        (decoder, "fp32"),
        (decoder, "bf16"),
        (partial(decoder, dropout=0.1), "bf16"),
        (partial(decoder, "llama"), "fp32"),
        (partial(decoder, "llama"), "bf16"),
        (mlp, "fp32"),
        (mlp, "bf16"),
        (cnn, "fp32"),
        (encoder, "fp32"),
    ],
)
def test_the_dry_pass_counts_what_a_real_one_keeps(make: Callable[[], nn.Module], precision: str) -> None:
    model = make()
    task, row = (LanguageModelling(512), TOKENS) if isinstance(model, Decoder) else (Classification(10), PIXELS)
    batch = default_collate([row] * 3)
    kept = kept_by_pass(model, case(task, row, precision), batch)
    real = really_kept(model, task, batch, precision)
    assert (kept.total, kept.largest) == (sum(real), max(real))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_sample_costs_is_told_from_what_a_pass_costs_anyway(precision: str) -> None:
    model, task = decoder(), LanguageModelling(512)
    facts = with_activations(count_parameters(model), model, case(task, TOKENS, precision))
    for number in (1, 7):
        real = really_kept(model, task, default_collate([TOKENS] * number), precision)
        assert facts.activation_bytes is not None
        assert facts.fixed_bytes + number * facts.activation_bytes == sum(real)
    assert facts.transient_bytes == 32 * 512 * (4 if precision == "fp32" else 6), "the gradient of the logits"
    assert (facts.fixed_bytes > 2 * 100_000) == (precision == "bf16"), "autocast's copies of the weights"


def test_a_model_without_memory_gives_the_same() -> None:
    there = decoder()
    with torch.device("meta"):
        nowhere = decoder()
    asked = case(LanguageModelling(512), TOKENS, "bf16")
    assert with_activations(count_parameters(nowhere), nowhere, asked) == with_activations(
        count_parameters(there), there, asked
    )


def test_parameters_are_counted_once_in_the_types_that_they_have() -> None:
    model = decoder(num_layers=3)
    model.blocks[0].half()
    model.norm.register_buffer("seen", torch.zeros(7, dtype=torch.int64))
    block = sum(p.numel() for p in model.blocks[1].parameters())
    rest = (512 + 32) * 64 + 2 * 64
    frozen = {id(model.positions.weight)} if model.positions is not None else set()
    model.norm.requires_grad_(False)
    assert count_parameters(model, frozen) == ModelFacts(
        num_parameters=3 * block + rest,
        num_trainable=3 * block + rest - 32 * 64 - 2 * 64,
        parameter_bytes=2 * block + 4 * (2 * block + rest),
        buffer_bytes=56,
        block_bytes=4 * block,
    )


def test_what_lies_outside_of_the_blocks_is_a_unit_too() -> None:
    model = Decoder(DecoderShape("gpt2", 2, 4, 4, 16, 64, 0.0, True, 4096, 32))
    assert count_parameters(model).block_bytes == 4 * ((4096 + 32) * 16 + 2 * 16)
    assert count_parameters(mlp()).block_bytes == 4 * sum(p.numel() for p in mlp().parameters()), "no block repeats"


def test_frozen_parameters_keep_less() -> None:
    model = mlp()
    frozen = {id(p) for p in model[1].parameters()}  # type: ignore[index]
    asked = case(Classification(10), PIXELS)
    less = with_activations(count_parameters(model, frozen), model, asked, frozen)
    model[1].requires_grad_(False)  # type: ignore[index]
    assert less == with_activations(count_parameters(model), model, asked)
    assert less.activation_bytes is not None
    assert FEW * less.activation_bytes + less.fixed_bytes == sum(really_kept(model, asked.task, asked.few, "fp32"))


def test_checkpointed_blocks_keep_their_inputs_only() -> None:
    model, task = decoder(num_layers=4), LanguageModelling(512)
    full = partial(apply_checkpointing, settings=CheckpointingConfig(kind="full"))
    plain = with_activations(count_parameters(model), model, case(task, TOKENS))
    less = with_activations(count_parameters(model), model, case(task, TOKENS, change=full))
    assert plain.activation_bytes is not None and less.activation_bytes is not None
    apply_checkpointing(model, CheckpointingConfig(kind="full"))
    assert FEW * less.activation_bytes + less.fixed_bytes == pytest.approx(
        sum(really_kept(model, task, default_collate([TOKENS] * FEW), "fp32")), abs=64
    ), "but for what a checkpoint keeps of the random streams"
    assert less.activation_bytes < plain.activation_bytes / 2


def test_nothing_is_left_behind() -> None:
    model, batch = cnn(), default_collate([PIXELS] * MORE)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        noise = random.random() + np.random.rand()
        return F.cross_entropy(F.dropout(model(batch[0])) + noise * torch.rand(10), batch[1])

    model.eval()
    kept_by_pass(model, case(choose_task(model, loss), PIXELS), batch)
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())


def test_what_reads_values_is_not_known_and_says_why() -> None:
    model = mlp()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        mean = F.cross_entropy(model(batch[0]), batch[1])
        return mean * 2 if mean.item() > 1 else mean

    facts = count_parameters(model)
    asked = with_activations(facts, model, case(choose_task(model, loss), PIXELS))
    assert asked.activation_bytes is None
    assert asked.note.startswith("DataDependentOutputException: aten._local_scalar_dense")
    assert asked.num_parameters == facts.num_parameters
