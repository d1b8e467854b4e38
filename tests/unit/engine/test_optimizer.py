from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from drumline.config.train import OptimizerConfig, TrainConfig
from drumline.engine.optimizer import freeze, layers, make_optimizer
from drumline.errors import ConfigError


class Encoder(nn.Module):
    """Embeddings, three layers, a final norm and a head that is not tied."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(4))
        self.words = nn.Embedding(9, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 9)
        if tied:
            self.head.weight = self.words.weight


def configured(**optimizer: Any) -> TrainConfig:
    return TrainConfig(lr=0.5, optimizer=OptimizerConfig.model_validate(optimizer))


def by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    """Rate and weight decay of each parameter that is optimized."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]
    }


def test_adamw_by_its_settings() -> None:
    optimizer = make_optimizer(nn.Linear(2, 1), configured(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2))
    assert isinstance(optimizer, torch.optim.AdamW)
    settings = optimizer.defaults
    assert (settings["lr"], settings["betas"], settings["eps"], settings["weight_decay"]) == (
        0.5,
        (0.8, 0.9),
        1e-6,
        0.2,
    )
    assert settings["fused"]


def test_sgd_by_its_settings() -> None:
    optimizer = make_optimizer(nn.Linear(2, 1), configured(name="sgd", momentum=0.9, weight_decay=0.0))
    assert isinstance(optimizer, torch.optim.SGD)
    settings = optimizer.defaults
    assert (settings["lr"], settings["momentum"], settings["weight_decay"], settings["fused"]) == (0.5, 0.9, 0.0, True)
    assert len(optimizer.param_groups) == 1


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    assert list(by_name(model, make_optimizer(model, configured()))) == ["1.weight", "1.bias"]


def test_norms_and_biases_do_not_decay() -> None:
    model = Encoder()
    optimizer = make_optimizer(model, configured(weight_decay=0.1))
    assert len(optimizer.param_groups) == 2
    for name, (lr, decay) in by_name(model, optimizer).items():
        assert lr == 0.5
        assert decay == (0.1 if model.get_parameter(name).dim() >= 2 else 0.0), name


@pytest.mark.parametrize("settings", [{"decay_all": True}, {"weight_decay": 0.0}])
def test_equal_settings_share_a_group(settings: dict[str, Any]) -> None:
    model = Encoder()
    (group,) = make_optimizer(model, configured(**settings)).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


def test_rules_where_the_last_value_counts() -> None:
    model = Encoder()
    rules = [
        {"pattern": "layers.*", "lr_factor": 0.5, "weight_decay": 0.3},
        {"pattern": "layers.2.?.bias", "weight_decay": 0.4},
        {"pattern": "layers.2.*", "lr_factor": 2},
    ]
    found = by_name(model, make_optimizer(model, configured(rules=rules)))
    assert found["layers.0.0.weight"] == found["layers.1.1.bias"] == (0.25, 0.3)
    assert found["layers.2.0.weight"] == (1.0, 0.3)
    assert found["layers.2.1.bias"] == (1.0, 0.4)
    assert found["head.weight"] == (0.5, 0.1)
    assert found["head.bias"] == (0.5, 0.0)


def test_the_first_group_has_the_plain_rate() -> None:
    rules = [{"pattern": "start", "lr_factor": 0.1}, {"pattern": "words.weight", "lr_factor": 10}]
    optimizer = make_optimizer(Encoder(), configured(rules=rules))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5, 5.0, 0.05]


def test_a_tied_weight_is_one_and_goes_by_either_name() -> None:
    model = Encoder(tied=True)
    for pattern in ("words.*", "head.weight"):
        optimizer = make_optimizer(model, configured(rules=[{"pattern": pattern, "lr_factor": 3}]))
        found = by_name(model, optimizer)
        assert len(found) == sum(len(group["params"]) for group in optimizer.param_groups)
        assert [name for name, (lr, _) in found.items() if lr == 1.5] == ["words.weight"]


def test_rates_fall_from_layer_to_layer() -> None:
    model = Encoder()
    found = by_name(
        model, make_optimizer(model, configured(layer_decay=0.5, rules=[{"pattern": "head.bias", "lr_factor": 2}]))
    )
    rates = {name: lr / 0.5 for name, (lr, _) in found.items()}
    assert rates["start"] == rates["words.weight"] == 0.5**4
    for layer in range(3):
        assert rates[f"layers.{layer}.0.weight"] == rates[f"layers.{layer}.1.bias"] == 0.5 ** (3 - layer)
    assert rates["norm.weight"] == rates["head.weight"] == 1.0
    assert rates["head.bias"] == 2.0


def distances(model: nn.Module) -> dict[str, int]:
    found = layers(model)
    return {name: found[id(p)] for name, p in model.named_parameters()}


def test_layers_of_a_plain_sequence() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))
    assert distances(model) == {"0.weight": 1, "0.bias": 1, "2.weight": 0}


def test_layers_of_two_stacks_and_what_is_between_them() -> None:
    def stack() -> nn.Module:
        return nn.ModuleDict(
            {"blocks": nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2)), "end": nn.LayerNorm(1)}
        )

    model = nn.ModuleDict({"shared": nn.Embedding(2, 1), "encoder": stack(), "decoder": stack()})
    assert distances(model) == {
        "shared.weight": 5,
        "encoder.blocks.0.weight": 4,
        "encoder.blocks.1.weight": 3,
        "encoder.end.weight": 3,
        "encoder.end.bias": 3,
        "decoder.blocks.0.weight": 2,
        "decoder.blocks.1.weight": 1,
        "decoder.end.weight": 0,
        "decoder.end.bias": 0,
    }


def test_an_embedding_is_at_the_bottom_wherever_it_stands() -> None:
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(1, 1, bias=False)]), "late": nn.Embedding(2, 1)})
    assert distances(model) == {"blocks.0.weight": 0, "late.weight": 1}
    assert distances(Encoder(tied=True))["words.weight"] == 4


def test_layer_decay_needs_layers() -> None:
    with pytest.raises(ConfigError, match="layer_decay goes by numbered layers, and a Linear has none"):
        make_optimizer(nn.Linear(2, 1), configured(layer_decay=0.5))


def test_freezing_what_fits_and_thawing_what_a_later_rule_fits() -> None:
    model = Encoder()
    rules = [{"pattern": "*", "freeze": True}, {"pattern": "head.*", "lr_factor": 2}]
    freeze(model, configured(rules=rules).optimizer)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["head.weight", "head.bias"]
    assert by_name(model, make_optimizer(model, configured(rules=rules))) == {
        "head.weight": (1.0, 0.1),
        "head.bias": (1.0, 0.0),
    }


def test_a_tied_weight_freezes_by_either_name() -> None:
    for pattern in ("words.*", "head.weight"):
        model = Encoder(tied=True)
        freeze(model, configured(rules=[{"pattern": pattern, "freeze": True}]).optimizer)
        assert not model.words.weight.requires_grad
        assert model.head.bias.requires_grad


def test_what_its_user_froze_stays_frozen() -> None:
    model = Encoder()
    model.start.requires_grad_(False)
    freeze(model, configured(rules=[{"pattern": "start"}]).optimizer)
    assert not model.start.requires_grad


def test_freezing_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="rules freezes every parameter"):
        freeze(Encoder(), configured(rules=[{"pattern": "*", "freeze": True}]).optimizer)


def test_a_pattern_that_fits_nothing_names_near_ones() -> None:
    rules = [{"pattern": "*.bias"}, {"pattern": "header.weight", "freeze": True}]
    for check in (
        lambda: freeze(Encoder(), configured(rules=rules).optimizer),
        lambda: make_optimizer(Encoder(), configured(rules=rules)),
    ):
        with pytest.raises(ConfigError, match=r"rules\.1\.pattern: 'header\.weight' fits no parameter") as caught:
            check()
        assert "such as head.weight" in caught.value.fix


def test_patterns_do_not_stop_at_dots_and_know_upper_case() -> None:
    model = Encoder()
    found = by_name(model, make_optimizer(model, configured(rules=[{"pattern": "layers*bias", "lr_factor": 2}])))
    assert sum(lr == 1.0 for lr, _ in found.values()) == 6
    with pytest.raises(ConfigError, match="fits no parameter"):
        make_optimizer(model, configured(rules=[{"pattern": "HEAD.*"}]))


def test_the_log_tells_the_groups(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="drumline")
    model = Encoder()
    freeze(model, configured(rules=[{"pattern": "words.*", "freeze": True}]).optimizer)
    make_optimizer(model, configured())
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "frozen: 1 tensor of 36 values; trained: 17 tensors of 141 values"
    assert second == (
        "optimizer: adamw (fused), 2 groups: lr 0.5 and weight decay 0.1 for 4 tensors of 84 values; "
        "lr 0.5 and weight decay 0 for 13 tensors of 57 values"
    )
