from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from drumline.config.compute import CheckpointingConfig
from drumline.errors import ConfigError
from drumline.models.decoder import Decoder, DecoderShape
from drumline.parallel.checkpointing import apply_checkpointing, is_checkpointed
from drumline.parallel.compute import Compute, own_gradients

KINDS: list[dict[str, Any]] = [{"kind": "selective"}, {"kind": "selective", "every": 2}, {"kind": "full"}]
INPUTS = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(1))


def decoder(dropout: float = 0.0) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderShape("gpt2", 4, 2, 2, 16, 32, dropout, True, 64, 8)).double()


def applied(model: nn.Module, settings: dict[str, Any]) -> None:
    apply_checkpointing(model, CheckpointingConfig.model_validate(settings))


def gradients(model: nn.Module, call: Any = None) -> dict[str, Tensor]:
    """Of one pass from a fixed state of the random stream."""
    torch.manual_seed(3)
    outputs = model(INPUTS) if call is None else call(model)
    outputs.square().mean().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    return found


class Counted(TorchDispatchMode):
    """Counts products, also those of the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += int(func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default))
        return func(*args, **kwargs or {})


def products(model: nn.Module) -> int:
    with Counted() as counted:
        gradients(model)
    return int(counted.products)


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_gradients_bit_for_bit_and_the_same_names(settings: dict[str, Any], dropout: float) -> None:
    plain = gradients(decoder(dropout))
    model = decoder(dropout)
    keys, modules = list(model.state_dict()), list(model.named_modules())
    applied(model, settings)
    assert (list(model.state_dict()), list(model.named_modules())) == (keys, modules)
    found = gradients(model)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def saved(model: nn.Module) -> int:
    """Values that autograd packs for the backward pass outside of what it computes again."""
    count = 0

    def pack(value: Tensor) -> Tensor:
        nonlocal count
        count += value.numel()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        model(INPUTS)
    return count


def test_full_computes_products_again_and_selective_does_not() -> None:
    plain, found = products(decoder()), {}
    for name, settings in zip(("selective", "every", "full"), KINDS, strict=True):
        model = decoder()
        applied(model, settings)
        found[name] = products(model)
        assert saved(model) < saved(decoder())
    assert found["selective"] == plain
    # A block has four products; the last one's output is not needed again, and torch stops before it.
    assert found["full"] > found["every"] > plain


@pytest.mark.parametrize("settings", KINDS)
def test_a_copy_computes_with_its_own_weights(settings: dict[str, Any]) -> None:
    model = decoder()
    applied(model, settings)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    found, plain = gradients(other), gradients(decoder())
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_it_can_be_applied_anew_and_undone() -> None:
    model = decoder()
    for settings in KINDS:
        applied(model, settings)
    twice = products(model)
    other = decoder()
    applied(other, KINDS[-1])
    assert twice == products(other)
    assert [is_checkpointed(block) for block in model.blocks] == [True] * 4
    applied(model, KINDS[1])
    assert [is_checkpointed(block) for block in model.blocks] == [True, False] * 2
    applied(model, {"kind": "none"})
    assert not any("forward" in vars(module) for module in model.modules())


def test_nothing_is_computed_twice_without_gradient() -> None:
    model = decoder()
    applied(model, {"kind": "full"})
    with torch.no_grad(), Counted() as counted:
        outputs = model(INPUTS)
    with torch.no_grad(), Counted() as plain:
        assert torch.equal(decoder()(INPUTS), outputs)
    assert counted.products == plain.products


def test_a_model_without_blocks_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"train.checkpointing.kind is full, and a Sequential has no block"):
        applied(model, {"kind": "full"})
    applied(model, {"kind": "budget"})  # the compiler's


@pytest.mark.parametrize("settings", KINDS)
def test_a_transformers_model(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Its blocks take keyword arguments, and a cache that a second forward pass would double."""

    def llama() -> nn.Module:
        torch.manual_seed(0)
        shape = transformers.LlamaConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2
        )
        model: nn.Module = transformers.LlamaForCausalLM(shape).double()
        return model

    def loss(model: nn.Module) -> Tensor:
        return model(input_ids=INPUTS, labels=INPUTS).loss  # type: ignore[no-any-return]

    model = llama()
    plain = gradients(llama(), loss)
    with caplog.at_level(logging.WARNING, "drumline"):
        applied(model, settings)
        applied(model, settings)
    assert caplog.text.count("config.use_cache of the LlamaForCausalLM is set to false") == 1
    found = gradients(model, loss)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_gradients_are_copied_once_for_recorded_graphs() -> None:
    model = nn.Linear(2, 1)
    own_gradients(model)
    own_gradients(model)
    hooks = model.weight._backward_hooks
    assert hooks is not None and len(hooks) == 1
    outputs = model(torch.ones(3, 2))
    given = torch.ones_like(outputs)
    outputs.backward(given)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[3.0, 3.0]]


def test_all_of_it_leaves_names_and_parameters() -> None:
    model = decoder()
    before, keys = list(model.parameters()), list(model.state_dict())
    Compute("fp32", "none", True, CheckpointingConfig(kind="full")).apply(model)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert list(model.state_dict()) == keys
    assert all(is_checkpointed(block) for block in model.blocks)


def test_what_the_compiler_is_told() -> None:
    assert Compute("bf16", "whole").options() == {}
    assert Compute("bf16", "blocks", True).options() == {"dynamic": False, "options": {"triton.cudagraphs": True}}
    budget = CheckpointingConfig(kind="budget", budget=0.3)
    options = Compute("bf16", "whole", False, budget).options()
    assert list(options) == ["backend"] and callable(options["backend"])
