from __future__ import annotations

import faulthandler
import gc
import os
import random
import weakref
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drumline.engine.process import (
    COLLECT_ALL_EVERY,
    COLLECT_EVERY,
    COMPILER_CACHE,
    CUBLAS_WORKSPACE,
    collect_garbage,
    expandable_segments,
    explain_nondeterministic,
    no_collector,
    nondeterministic,
    own_collector,
    process_settings,
    seed_window,
)
from drumline.errors import ConfigError


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is set aside from the collector here, as in a script; see tests/conftest.py."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def streams() -> tuple[object, list[int], list[int]]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


@pytest.mark.parametrize(("precision", "products"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "high")])
@pytest.mark.parametrize("fails", [True, False])
def test_settings_hold_inside_and_are_put_back(precision: str, products: str, fails: bool) -> None:
    before = streams(), torch.get_float32_matmul_precision(), faulthandler.is_enabled()

    def run() -> None:
        with process_settings(precision):
            assert torch.get_float32_matmul_precision() == products
            assert faulthandler.is_enabled()
            seed_window(1, 2, 3, 4)
            assert streams() != before[0]
            if fails:
                raise KeyError("inside")

    if fails:
        with pytest.raises(KeyError):
            run()
    else:
        run()
    assert (streams(), torch.get_float32_matmul_precision(), faulthandler.is_enabled()) == before


def test_windows_have_streams_of_their_own() -> None:
    drawn = {}
    with process_settings("fp32"):
        for place in product((0, 1), (0, 1, 2), (0, 1, 2), (0, 1, 2)):
            seed_window(*place)
            drawn[place] = random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))
        seed_window(1, 2, 0, 1)
        assert random.random() == drawn[1, 2, 0, 1][0]
        assert float(np.random.rand()) == drawn[1, 2, 0, 1][1]
        assert float(torch.rand((), dtype=torch.float64)) == drawn[1, 2, 0, 1][2]
    for values in zip(*drawn.values(), strict=True):
        assert len(set(values)) == len(drawn)


def determinism() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get(CUBLAS_WORKSPACE),
    )


@pytest.fixture
def searching() -> Iterator[None]:
    """A user's own settings, the opposite of what a deterministic run needs."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before


@pytest.mark.usefixtures("searching")
@pytest.mark.parametrize("given", [None, ":16:8", ":0:0"])
def test_a_deterministic_run_and_what_was_before(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    if given is None:
        monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    else:
        monkeypatch.setenv(CUBLAS_WORKSPACE, given)
    before = determinism()
    assert before == (True, True, False, True, given)
    with process_settings("fp32"):
        assert determinism() == before
    with pytest.raises(KeyError), process_settings("fp32", deterministic=True):
        assert determinism() == (True, False, True, False, ":16:8" if given == ":16:8" else ":4096:8")
        with process_settings("fp32", True):  # an evaluation inside it
            assert determinism()[0]
        assert determinism()[0]
        raise KeyError
    assert determinism() == before


def test_an_operation_without_a_repeatable_form_is_named() -> None:
    with (
        pytest.raises(ConfigError, match=r"deterministic is true, and put_ has no implementation") as caught,
        process_settings("fp32", deterministic=True),
        explain_nondeterministic(),
    ):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert "train.deterministic to false" in caught.value.fix
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_other_errors_are_left_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="of another kind"), explain_nondeterministic():
        raise RuntimeError("of another kind")
    assert nondeterministic(ValueError("put_ does not")) is None


def noisy_training() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Three updates through an embedding, dropout and attention."""
    seed_window(0, 0, 0, 0)
    table, attention = nn.Embedding(7, 8), nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
    parameters = [*table.parameters(), *attention.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    for _ in range(3):
        x = table(torch.randint(7, (5, 6)))
        loss = attention(x, x, x, need_weights=False)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach(), [p.detach() for p in parameters]


def test_two_runs_give_equal_bits() -> None:
    runs = []
    for _ in range(2):
        with process_settings("fp32", deterministic=True):
            runs.append(noisy_training())
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


class Node:
    """What only a collection frees, once it refers to itself."""

    own: Node


def cycle() -> weakref.ref[Node]:
    node = Node()
    node.own = node
    return weakref.ref(node)


@pytest.mark.usefixtures("thawed")
def test_the_collector_rests_and_is_put_back() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    for fails in (False, True):
        try:
            with no_collector():
                assert not gc.isenabled()
                assert gc.get_freeze_count() > frozen
                with no_collector():  # another run inside it
                    assert not gc.isenabled()
                assert not gc.isenabled()
                assert gc.get_freeze_count() > frozen
                if fails:
                    raise KeyError
        except KeyError:
            assert fails
        assert gc.isenabled()
        assert gc.get_freeze_count() == frozen


def test_a_collector_that_its_user_stopped_stays_so() -> None:
    gc.disable()
    try:
        with no_collector(), own_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("thawed")
def test_garbage_of_before_is_not_kept_for_the_run() -> None:
    gone = cycle()
    with no_collector():
        assert gone() is None


def test_garbage_is_collected_where_the_loop_says_so() -> None:
    with no_collector():
        gone = cycle()
        collect_garbage(COLLECT_EVERY + 1)
        assert gone() is not None
        collect_garbage(COLLECT_EVERY)
        assert gone() is None
        gone = cycle()
        collect_garbage()
        assert gone() is None


def test_garbage_that_grew_old_first_is_collected_in_the_end() -> None:
    with no_collector():
        node = Node()
        node.own, gone = node, weakref.ref(node)
        collect_garbage()
        del node
        for _ in range(COLLECT_ALL_EVERY - 2):
            collect_garbage()
        assert gone() is not None
        collect_garbage()
        assert gone() is None


def test_user_code_may_have_the_collector() -> None:
    with no_collector():
        with pytest.raises(KeyError), own_collector():
            assert gc.isenabled()
            with no_collector():  # a run of the user's
                assert not gc.isenabled()
            assert gc.isenabled()
            raise KeyError
        assert not gc.isenabled()


@pytest.mark.parametrize("own", [None, "/elsewhere"])
def test_what_is_compiled_is_kept_where_a_restart_finds_it(own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    if own is None:
        monkeypatch.delenv(COMPILER_CACHE, raising=False)
    else:
        monkeypatch.setenv(COMPILER_CACHE, own)
    with process_settings("fp32"):
        assert os.environ[COMPILER_CACHE] == (own or "/caches/drumline/compiled")
        with process_settings("fp32"):  # an evaluation inside it
            assert COMPILER_CACHE in os.environ
        assert COMPILER_CACHE in os.environ
    assert os.environ.get(COMPILER_CACHE) == own


@pytest.mark.parametrize(
    ("given", "there", "wanted", "expected"),
    [
        ({}, True, True, ["expandable_segments:True", "expandable_segments:False"]),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
            True,
            True,
            ["max_split_size_mb:128,expandable_segments:True", "max_split_size_mb:128,expandable_segments:False"],
        ),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, True, True, []),
        ({}, True, False, []),
        ({}, False, True, []),
    ],
)
def test_segments_grow_inside_once(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], there: bool, wanted: bool, expected: list[str]
) -> None:
    told: list[str] = []
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    with pytest.raises(KeyError), expandable_segments(wanted):
        with expandable_segments(wanted):  # an evaluation inside it
            assert told == expected[:1]
        assert told == expected[:1]
        raise KeyError("inside")
    assert told == expected
