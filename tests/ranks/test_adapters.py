"""Adapters train alike under every kind, and their checkpoints hold them alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline.engine.checkpoint import read_checkpoint
from tests.rank_pool import RankError, RankPool
from tests.ranks.adapted import Case, import_peft, tiny_llama, train_several
from tests.ranks.sharded import checkpoint
from tests.ranks.training import largest_difference

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {"kind": "single"}),
    "data_parallel": (1, {"kind": "data_parallel", "replicas": 2}),
    "ddp": (2, {"kind": "ddp"}),
    "fsdp": (2, {"kind": "fsdp", "min_params": 100}),
    "resharding": (2, {"kind": "fsdp", "min_params": 100, "reshard_after_forward": "always"}),
}
ADAMW: dict[str, Any] = {
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "lr": 0.01,
    "averaging": {"kind": "ema", "decay": 0.9},
}

INT8 = {**ADAMW, "optimizer": {**ADAMW["optimizer"], "state_precision": "int8"}}
WIDE = {"hidden_size": 64, "intermediate_size": 64}
"""Rows that 8 bits and less divide into blocks."""


@pytest.fixture(autouse=True)
def _imported(ranks: RankPool) -> None:
    """peft imports bitsandbytes, and that the compiler, once a rank: many seconds on a busy machine."""
    ranks.run(2, import_peft, timeout=150)


LORA: dict[str, Any] = {"adapter": {"rank": 4}}
DORA: dict[str, Any] = {"adapter": {"kind": "dora", "rank": 4, "train_also": ["embed_tokens"]}}
QLORA: dict[str, Any] = {"quantise": "nf4", "adapter": {"rank": 4, "targets": ["q_proj", "up_proj"]}}


@pytest.mark.parametrize(
    ("kind", "settings", "train"), [("ddp", LORA, ADAMW), ("fsdp", QLORA, INT8), ("resharding", DORA, ADAMW)]
)
def test_every_kind_trains_the_same_adapter(
    ranks: RankPool, tmp_path: Path, kind: str, settings: dict[str, Any], train: dict[str, Any]
) -> None:
    """To 1e-10 in float64; what is frozen keeps every bit."""
    base = tiny_llama(tmp_path / "base", **(WIDE if settings is QLORA else {})).double().state_dict()
    model = {"path": str(tmp_path / "base"), **settings}
    ((expected,),) = ranks.run(1, train_several, [Case(str(tmp_path / "single"), model, KINDS["single"][1], train)])
    assert expected.kept is not None
    moved = {name for name in expected.weights if not torch.equal(expected.weights[name], expected.begun[name])}
    assert moved == expected.kept
    for name, value in expected.begun.items():
        if ".lora_" not in name and not name.endswith((".packed", ".scales")):
            torch.testing.assert_close(value, base[name.replace(".base_layer", "")], rtol=0, atol=0)
    world, parallel = KINDS[kind]
    for (found,) in ranks.run(world, train_several, [Case(str(tmp_path / kind), model, parallel, train)]):
        torch.testing.assert_close(found.losses, expected.losses, rtol=0, atol=1e-10)
        assert largest_difference(found.begun, expected.begun) == 0
        assert largest_difference(found.weights, expected.weights) < 1e-10
        assert found.kept == expected.kept


@pytest.mark.parametrize(("saver", "loaders"), [("ddp", ["fsdp"]), ("resharding", ["data_parallel", "fsdp"])])
def test_every_kind_goes_on_from_the_adapter_alone(
    ranks: RankPool, tmp_path: Path, saver: str, loaders: list[str]
) -> None:
    tiny_llama(tmp_path / "base", **WIDE)
    model = {"path": str(tmp_path / "base"), "adapter": {"rank": 4}}
    plain = Case(str(tmp_path / "whole"), model, {"kind": "single"}, INT8, save=2)
    ((expected,),) = ranks.run(1, train_several, [plain])
    world, parallel = KINDS[saver]
    ranks.run(world, train_several, [replace(plain, directory=str(tmp_path / "first"), parallel=parallel)])
    path = checkpoint(str(tmp_path / "first"), 2)
    state = read_checkpoint(Path(path))
    assert state["strategy"]["model"].keys() == expected.kept
    assert state["base"]["path"] == model["path"]
    assert len(state["strategy"]["learners"]["main"]["optimizer"]["state"]) == len(expected.kept or ())
    for loader in loaders:
        world, parallel = KINDS[loader]
        case = replace(plain, directory=str(tmp_path / loader), parallel=parallel, load=path, save=None)
        for (rest,) in ranks.run(world, train_several, [case]):
            torch.testing.assert_close(rest.losses, expected.losses[2:], rtol=0, atol=1e-10)
            assert largest_difference(rest.weights, expected.weights) < 1e-10


@pytest.mark.parametrize(("kind", "by"), [("ddp", "initial"), ("fsdp", "load")])
def test_another_base_is_refused_on_all_ranks(ranks: RankPool, tmp_path: Path, kind: str, by: str) -> None:
    """Of the same shape, with other weights."""
    tiny_llama(tmp_path / "base")
    tiny_llama(tmp_path / "other", seed=4)
    model = {"path": str(tmp_path / "base"), "adapter": {"rank": 4}}
    world, parallel = KINDS[kind]
    case = Case(str(tmp_path / "run"), model, parallel, {"max_steps": 1}, save=1)
    ranks.run(world, train_several, [case])
    others = {**model, "path": str(tmp_path / "other")}
    path = checkpoint(case.directory, 1)
    case = replace(case, directory=str(tmp_path / "next"), model=others, save=None)
    case = replace(case, initial=path) if by == "initial" else replace(case, load=path)
    with pytest.raises(RankError, match=r"its adapter belongs to another base model \(.*base\) than model.path names"):
        ranks.run(world, train_several, [case])
    whole = replace(case, directory=str(tmp_path / "plain"), model={"path": model["path"]})
    with pytest.raises(RankError, match=r"it holds only an adapter to .*base, and this model has none"):
        ranks.run(world, train_several, [whole])
