"""Case 8: names are the bare model's, whatever wraps it or parts of it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from drumline.parallel.keys import bare_keys, fitting, load_weights, matched, own_keys
from drumline.parallel.optimized import OptimizedDataParallel


class Inner(nn.Module):
    """A part whose author called one of its own parts `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)


def model() -> nn.Module:
    return nn.Sequential(Inner(), nn.Linear(3, 1))


def only_module() -> nn.Module:
    """A model with nothing but a part of that name."""
    whole = nn.Module()
    whole.module = nn.Sequential(nn.Linear(2, 2))
    return whole


def compiled(module: nn.Module) -> nn.Module:
    wrapped: Any = torch.compile(module, backend=lambda graph, inputs: graph.forward)
    found: nn.Module = wrapped
    return found


def inner(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Wrap the first part instead of the whole."""

    def change(whole: nn.Module) -> nn.Module:
        name, part = next(iter(whole.named_children()))
        setattr(whole, name, wrap(part))
        return whole

    return change


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda module: module,
    "DataParallel": nn.DataParallel,
    "OptimizedDataParallel": OptimizedDataParallel,
    "compiled": compiled,
    "DataParallel(compiled)": lambda module: nn.DataParallel(compiled(module)),
    "compiled(DataParallel)": lambda module: compiled(nn.DataParallel(module)),
    "part compiled": inner(compiled),
    "part in DataParallel": inner(nn.DataParallel),
    "part checkpointed": inner(checkpoint_wrapper),
    "twice": lambda module: nn.DataParallel(nn.DataParallel(module)),
}
MODELS = {"with a part called module": model, "with only such a part": only_module}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_wrapping_has_the_bare_names(make: Callable[[], nn.Module]) -> None:
    expected = list(make().state_dict())
    for wrap in WRAPPERS.values():
        wrapped = wrap(make())
        assert list(bare_keys(wrapped, wrapped.state_dict())) == expected
        named = dict(wrapped.named_parameters())
        assert list(bare_keys(wrapped, named)) == [name for name, _ in make().named_parameters()]
        assert own_keys(wrapped, bare_keys(wrapped, wrapped.state_dict())).keys() == wrapped.state_dict().keys()


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("saver", WRAPPERS)
def test_what_any_wrapping_has_saved_loads_into_any(saver: str, make: Callable[[], nn.Module]) -> None:
    first = make()
    with torch.no_grad():
        for number, p in enumerate(first.parameters()):
            p.fill_(number)
    expected = copy.deepcopy(first.state_dict())
    saved = copy.deepcopy(WRAPPERS[saver](first).state_dict())
    for wrap in WRAPPERS.values():
        wrapped = wrap(make())
        load_weights(wrapped, saved)
        torch.testing.assert_close(bare_keys(wrapped, wrapped.state_dict()), dict(expected), rtol=0, atol=0)


def test_an_averaged_model_of_torch_is_a_wrapper_with_a_counter() -> None:
    assert list(fitting(model(), AveragedModel(model()).state_dict())) == list(model().state_dict())


def misfit(saved: list[str], wanted: list[str]) -> str:
    with pytest.raises(ValueError) as caught:
        matched(saved, wanted)
    return str(caught.value)


def test_a_module_of_the_users_own_is_no_wrapper() -> None:
    assert "module.weight" in misfit(["weight"], ["module.weight"])
    assert "1 names are not the model's (module.bias)" in misfit(["module.bias", "weight"], ["weight"])
    assert "not the model's" in misfit(["a.module.weight", "a.bias"], ["a.weight", "a.bias"])


def test_what_does_not_match_is_named_and_counted() -> None:
    wanted = [f"layers.{number}.weight" for number in range(9)]
    assert misfit(wanted[:4], wanted) == (
        "5 of the model's 9 names are missing (layers.4.weight, layers.5.weight, layers.6.weight, ...)"
    )
    text = misfit([f"module.{name}" for name in [*wanted[1:], "head.bias"]], wanted)
    assert text == (
        "1 of the model's 9 names are missing (layers.0.weight), and 1 names are not the model's (module.head.bias)"
    )


def test_two_names_of_one_weight_are_refused() -> None:
    assert "a.weight and a._orig_mod.weight" in misfit(["a.weight", "a._orig_mod.weight"], ["a.weight"])


def test_names_match_one_to_one_over_all_wrappings() -> None:
    names = ["weight", "module.weight", "module.module.bias"]
    for before in itertools.product(["", "module.", "_orig_mod."], repeat=2):
        saved = ["".join(before) + name for name in names]
        assert matched(saved, names) == dict(zip(names, saved, strict=True))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("left", ["embedding.weight", "head.weight"])
def test_one_name_of_tied_weights_will_do(left: str) -> None:
    tied = Tied()
    load_weights(nn.DataParallel(tied), {f"module.{left}": torch.ones(4, 2)})
    assert torch.equal(tied.head.weight, torch.ones(4, 2))
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.zeros(4, 2))
    with pytest.raises(ValueError, match="missing"):
        load_weights(untied, {left: torch.ones(4, 2)})


class Versioned(nn.Linear):
    """A module that reads its older form otherwise, as torch lets modules do (BatchNorm and others)."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, local_metadata: dict[str, Any], *more: Any) -> None:
        if local_metadata.get("version") != 2:
            state[f"{prefix}weight"] = -state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, local_metadata, *more)


def test_versions_that_modules_keep_beside_their_weights_are_there() -> None:
    saved: dict[str, Tensor] = dict(Versioned(2, 2).state_dict())
    for wrap in (WRAPPERS["plain"], WRAPPERS["DataParallel(compiled)"]):
        later = wrap(Versioned(2, 2))
        load_weights(later, saved)
        torch.testing.assert_close(bare_keys(later, later.state_dict()), saved, rtol=0, atol=0)
