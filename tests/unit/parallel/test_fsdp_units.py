"""Which modules become units, and in which types they are gathered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drumline.config.parallel import FsdpParallel
from drumline.errors import ConfigError, DrumlineError
from drumline.parallel.fsdp_units import Root, find_units, own_modules, policy_of


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 100, bias=False)


def test_repeated_blocks_of_enough_parameters() -> None:
    model = Deep()
    assert find_units(model, 100) == list(model.blocks)
    assert find_units(model, 145) == []


def test_what_says_that_it_can_is_sharded_beside_the_blocks() -> None:
    class Last(nn.Linear):
        sharded_alone = True

    model = Deep()
    model.head = Last(8, 100, bias=False)
    assert find_units(model, 100) == [*model.blocks, model.head]
    assert find_units(model, 801) == []
    model.head.weight = model.embedding.weight
    assert find_units(model, 100) == list(model.blocks)


def test_a_block_that_is_used_twice_is_one_unit() -> None:
    model, block = Deep(), Block()
    model.blocks = nn.ModuleList([block, block, Block()])
    assert find_units(model, 100) == [block, model.blocks[2]]


def test_a_block_that_shares_a_parameter_with_others_is_left_to_the_root() -> None:
    model = Deep()
    model.blocks[0].register_parameter("tied", model.get_parameter("embedding.weight"))
    assert find_units(model, 100) == [model.blocks[1]]


def test_without_repetition_the_smallest_modules_of_enough_parameters_but_no_single_layers() -> None:
    parts = {"encoder": nn.Sequential(nn.Linear(8, 8), nn.Tanh()), "list": nn.ModuleList([nn.Linear(8, 8)])}
    model = nn.ModuleDict({**parts, "decoder": nn.ModuleDict({"inner": Block()}), "last": nn.Linear(8, 8)})
    decoder = model["decoder"]["inner"]  # type: ignore[index]
    assert find_units(model, 72) == [parts["encoder"], decoder]
    assert find_units(model, 100) == [decoder]
    assert find_units(model, 145) == []


def test_own_modules_are_those_of_no_inner_unit() -> None:
    model = Deep()
    own = list(own_modules(model, {model.blocks[0]}))
    assert model.blocks[0] not in own and model.blocks[0].get_submodule("inner") not in own
    assert model.blocks[1].get_submodule("inner") in own


@pytest.mark.parametrize(
    ("precision", "wire", "param", "reduced"),
    [
        ("fp32", "fp32", None, None),
        ("tf32", "fp32", None, None),
        ("bf16", "fp32", torch.bfloat16, torch.float32),
        ("fp16", "fp32", torch.float16, torch.float32),
        ("bf16", "bf16", torch.bfloat16, torch.bfloat16),
        ("fp32", "bf16", None, torch.bfloat16),
    ],
)
def test_types(precision: str, wire: str, param: torch.dtype | None, reduced: torch.dtype | None) -> None:
    settings = FsdpParallel.model_validate({"reduce_precision": wire})
    plain = policy_of(list(Block().modules()), precision, settings)
    assert (plain.param_dtype, plain.reduce_dtype) == (param, reduced)
    assert not plain.cast_forward_inputs
    normed = policy_of([nn.Linear(2, 2), nn.BatchNorm1d(2)], precision, settings)
    assert normed.param_dtype is None
    exact = policy_of([nn.Linear(2, 2).double()], precision, settings)
    assert exact.param_dtype is None and exact.reduce_dtype is None


def test_trained_types_must_be_one() -> None:
    modules = [nn.Linear(2, 2), nn.Linear(2, 2).double()]
    with pytest.raises(ConfigError, match=r"torch\.float"):
        policy_of(list(modules), "fp32", FsdpParallel())
    modules[1].requires_grad_(False)
    assert policy_of(list(modules), "bf16", FsdpParallel()).param_dtype is None


def test_the_model_is_called_inside_only() -> None:
    model = nn.Linear(2, 2)
    root = Root(model)
    with pytest.raises(DrumlineError, match="called by itself"):
        model(torch.zeros(1, 2))
    with root.entered():
        assert root(lambda: model(torch.zeros(1, 2))).shape == (1, 2)
    root.leave()
    model(torch.zeros(1, 2))
