"""Models from the meta device get their values where they train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from drumline.errors import ConfigError
from drumline.parallel.materialise import allocate, check_layouts, layout_of, materialise, on_meta, seeds_of

CPU = torch.device("cpu")


def make() -> nn.Sequential:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(3, 4))
    model[3].weight = model[0].weight
    return model


def test_values_do_not_depend_on_who_is_made_first() -> None:
    whole, parts = make(), make()
    assert on_meta(whole)[0] == "0.weight" and len(on_meta(whole)) == 7
    state = torch.get_rng_state()
    materialise(whole, CPU, seeds_of(whole, 5), {})
    seeds, made = seeds_of(parts, 5), dict[int, torch.Tensor]()
    for layer in reversed(list(parts)[:3]):
        materialise(layer, CPU, seeds, made)
    materialise(parts, CPU, seeds, made)
    assert torch.equal(torch.get_rng_state(), state)
    assert on_meta(parts) == []
    for name in ("1.weight", "1.running_var", "2.weight", "2.bias"):
        assert torch.equal(whole.state_dict()[name], parts.state_dict()[name])
    assert whole[3].weight is whole[0].weight and parts[3].weight is parts[0].weight
    assert torch.equal(whole.get_buffer("1.running_var"), torch.ones(4))


def test_another_seed_gives_other_values() -> None:
    first, second = make(), make()
    materialise(first, CPU, seeds_of(first, 5), {})
    materialise(second, CPU, seeds_of(second, 6), {})
    assert not torch.equal(first.get_parameter("2.weight"), second.get_parameter("2.weight"))


def test_what_has_values_keeps_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), make())
    before = model.get_parameter("0.weight").detach().clone()
    materialise(model, CPU, seeds_of(model, 0), {})
    assert torch.equal(model.get_parameter("0.weight"), before)


def test_a_module_that_cannot_make_its_values_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3, device="meta"))

    with pytest.raises(ConfigError, match=r"a Scale cannot make its values.*\n.*reset_parameters"):
        materialise(Scale(), CPU, seeds_of(Scale(), 0), {})


def test_memory_without_values_keeps_ties() -> None:
    model = make()
    allocate(model.modules(), CPU, {})
    assert on_meta(model) == [] and model[3].weight is model[0].weight
    assert not model.get_buffer("1.running_mean").is_meta


def test_unlike_models_are_told_by_names_and_shapes() -> None:
    tied, untied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert layout_of(untied) == layout_of(nn.Sequential(nn.Linear(3, 3, device="meta"), nn.Linear(3, 3)))
    check_layouts([layout_of(untied)] * 2, layout_of(untied))
    with pytest.raises(ConfigError, match="tie_word_embeddings"):
        check_layouts([layout_of(untied), layout_of(tied)], layout_of(untied))
