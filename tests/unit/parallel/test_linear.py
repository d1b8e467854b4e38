from __future__ import annotations

import builtins
import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline.config.compute import LinearConfig
from drumline.errors import ConfigError, MissingExtra
from drumline.models.decoder import Decoder, DecoderShape
from drumline.parallel.linear import convert_linear

SHAPE = DecoderShape("llama", 2, 2, 2, 64, 128, 0.0, False, 96, 32)
INPUTS = torch.randint(96, (4, 32), generator=torch.Generator().manual_seed(1))


def decoder(shape: DecoderShape = SHAPE) -> Decoder:
    torch.manual_seed(0)
    return Decoder(shape)


def converted(model: nn.Module, products: str = "float8", skip: tuple[str, ...] = (), *, compiled: bool = True) -> None:
    settings = LinearConfig.model_validate({"products": products, "skip": list(skip)})
    convert_linear(model, settings, compiled=compiled, emulated=True)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    """Of a few updates on one batch whose next tokens are the same tokens backwards."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    labels, found = INPUTS.flip(1).flatten(), []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(INPUTS).flatten(0, 1).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("products", ["float8", "float8_rowwise", "int8"])
def test_losses_stay_close_and_the_optimizer_stays_valid(products: str) -> None:
    plain = losses(decoder())
    model = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    before = {name: id(p) for name, p in model.named_parameters()}
    modules, keys = list(model.modules()), list(model.state_dict())
    converted(model, products)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert [id(module) for module in model.modules()] == [id(module) for module in modules]
    assert list(model.state_dict()) == keys
    found = losses(model, optimizer)
    assert found[-1] < 0.9 * found[0]
    assert found != plain
    assert found == pytest.approx(plain, rel=0.02)


def test_int8_under_autocast_has_one_type_in_each_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.prototype.quantized_training import int8_mixed_precision

    types: list[tuple[torch.dtype, torch.dtype]] = []
    multiply = int8_mixed_precision._dynamic_int8_mm

    def seen(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        types.append((left.dtype, right.dtype))
        out: torch.Tensor = multiply(left, right)
        return out

    monkeypatch.setattr(int8_mixed_precision, "_dynamic_int8_mm", seen)
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 4))
    convert_linear(model, LinearConfig(products="int8"), compiled=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(torch.ones(16, 16))
    y.float().sum().backward()
    assert types == [(torch.bfloat16, torch.bfloat16)] * (2 + 1 + 2), "on a GPU torchao refuses others"
    assert model[0].bias.grad is not None and model[0].bias.grad.dtype == torch.float32


def test_products_are_not_those_of_float32() -> None:
    model = decoder()
    plain = model(INPUTS).detach()
    converted(model)
    assert type(model.blocks[0].attention.qkv).__name__ == "Float8Linear"  # type: ignore[union-attr]
    relative = float((model(INPUTS).detach() - plain).norm() / plain.norm())
    assert 1e-3 < relative < 0.1
    converted(model, "default")
    assert type(model.blocks[0].attention.qkv) is nn.Linear  # type: ignore[union-attr]
    assert torch.equal(model(INPUTS), plain)
    assert "config" not in vars(model.blocks[0].attention.qkv)  # type: ignore[union-attr]


def test_a_copy_computes_alike() -> None:
    model = decoder()
    converted(model)
    assert torch.equal(copy.deepcopy(model)(INPUTS), model(INPUTS))


def test_what_is_left_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "drumline")
    model = decoder()
    converted(model, skip=("blocks.1.mlp.*",))
    left = "blocks.1.mlp.gate, blocks.1.mlp.up, blocks.1.mlp.out (train.linear.skip)"
    assert f"float8: 7 of 10 linear layers; left: {left}\n" in caplog.text
    assert "without train.compile" not in caplog.text
    converted(nn.Sequential(nn.Linear(16, 24), nn.Linear(32, 16), nn.Linear(16, 16)), compiled=False)
    assert "float8: 1 of 3 linear layers; left: 0 (sides no multiples of 16); 2 (output)" in caplog.text
    assert "train.linear.products is float8 without train.compile" in caplog.text


class Tied(nn.Module):
    """An output layer that is not the last one defined, tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.tokens.weight
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def test_the_output_layer_is_found_by_its_tied_weights() -> None:
    model = Tied()
    converted(model)
    assert type(model.head) is nn.Linear
    assert [type(block[0]).__name__ for block in model.blocks] == ["Float8Linear"] * 2  # type: ignore[index]


def test_patterns_without_a_layer_and_models_without_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"skip.1: 'blocks.7.*' fits no linear layer"):
        converted(decoder(), skip=("*.qkv", "blocks.7.*"))
    with pytest.raises(ConfigError, match=r"float8, and no linear layer of the Linear can be converted:  \(output\)"):
        converted(nn.Linear(16, 16))
    with pytest.raises(ConfigError, match="it has none"):
        converted(nn.Embedding(4, 4))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("torchao"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for products in ("float8", "int8"):
        with pytest.raises(MissingExtra, match=r"drumline\[float8\]"):
            converted(decoder(), products)


def test_sparse_layers_keep_their_parameters() -> None:
    shape = DecoderShape("gpt2", 2, 2, 2, 128, 256, 0.0, True, 96, 32)
    model = decoder(shape)
    before, keys = list(model.parameters()), list(model.state_dict())
    converted(model, "sparse_24")
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert list(model.state_dict()) == keys
    assert type(model.blocks[0].mlp.up).__name__ == "SparseLinear"  # type: ignore[union-attr]
