"""Sharded runs: what they save is what every kind saves, and what they begin with is rank 0's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drumline import Trainer
from drumline.engine.checkpoint import read_checkpoint
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.sharded import (
    ALWAYS,
    FSDP,
    Case,
    Deep,
    Seen,
    Tied,
    checkpoint,
    on_meta,
    on_meta_but_on_rank_0,
    train_several,
)
from tests.ranks.training import Case as Base
from tests.ranks.training import MaskedRegression, MaskedRows, config_of, largest_difference

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {"kind": "single"}),
    "data_parallel": (1, {"kind": "data_parallel", "replicas": 2}),
    "ddp": (2, {"kind": "ddp"}),
    "fsdp": (3, FSDP),
    "resharding": (2, ALWAYS),
}
ADAMW: dict[str, Any] = {
    "optimizer": {"name": "adamw", "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup_steps": 2},
    "lr": 0.01,
    "averaging": {"kind": "ema", "decay": 0.9},
}


def check(found: Seen, expected: Seen, since: int = 0) -> None:
    torch.testing.assert_close(found.losses, expected.losses[since:], rtol=0, atol=1e-10)
    torch.testing.assert_close(found.norms, expected.norms[since:], rtol=0, atol=1e-10)
    assert found.rates == expected.rates[since:]
    assert largest_difference(found.weights, expected.weights) < 1e-10
    later = expected.evaluations[len(expected.evaluations) - len(found.evaluations) :]
    for one, other in zip(found.evaluations, later, strict=True):
        torch.testing.assert_close(dict(one), dict(other), rtol=0, atol=1e-10)


@pytest.mark.parametrize("saver", KINDS)
def test_every_kind_goes_on_from_every_kind(ranks: RankPool, tmp_path: Path, saver: str) -> None:
    """Cases 7 and 8: weights, moments, average and rates; saved after three updates of six."""
    plain = Case(str(tmp_path / "whole"), {"kind": "single"}, ADAMW, num_eval_rows=5, every=2)
    ((expected,),) = ranks.run(1, train_several, [plain])
    world, parallel = KINDS[saver]
    ((first,), *_) = ranks.run(
        world, train_several, [replace(plain, directory=str(tmp_path / "first"), parallel=parallel, save=3)]
    )
    check(first, expected)
    path = checkpoint(str(tmp_path / "first"), 3)
    for loader, (world, parallel) in KINDS.items():
        if "fsdp" in (saver, loader) or "resharding" in (saver, loader):
            case = replace(plain, directory=str(tmp_path / loader), parallel=parallel, load=path)
            for (rest,) in ranks.run(world, train_several, [case]):
                check(rest, expected, since=3)
                assert len(rest.evaluations) == 2


def test_the_file_is_that_of_one_process(ranks: RankPool, tmp_path: Path) -> None:
    """Case 28: frozen and tied parameters, buffers; it loads into a plain model, where what is tied is tied."""
    files = []
    for name, (world, parallel) in {"one": KINDS["single"], "three": KINDS["fsdp"]}.items():
        ranks.run(world, train_several, [Case(str(tmp_path / name), parallel, ADAMW, Tied, save=6, num_rows=48)])
        files.append(read_checkpoint(Path(checkpoint(str(tmp_path / name), 6)))["strategy"])
    one, three = files
    assert one.keys() == three.keys()
    assert list(one["model"]) == list(three["model"])
    weights = three["model"]
    assert weights["head.weight"].data_ptr() == weights["embedding.weight"].data_ptr()
    trained = [name for name in weights if "running" not in name]
    assert largest_difference({n: weights[n] for n in trained}, {n: one["model"][n] for n in trained}) < 1
    assert {type(value) for value in weights.values()} == {torch.Tensor}
    kept, expected = (file["learners"]["main"]["optimizer"] for file in (three, one))
    assert kept["param_groups"] == expected["param_groups"] and kept["state"].keys() == expected["state"].keys()
    for index, values in kept["state"].items():
        assert {k: v.shape for k, v in values.items()} == {k: v.shape for k, v in expected["state"][index].items()}
    model = Tied()
    model.load_state_dict(weights)
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.blocks[0].get_parameter("inner.weight"), Tied().blocks[0].get_parameter("inner.weight"))


@pytest.mark.parametrize("settings", [{"shard_size": 2}, {"reduce_precision": "bf16"}], ids=["hybrid", "reduction"])
def test_other_settings(ranks: RankPool, tmp_path: Path, settings: dict[str, Any]) -> None:
    """Hybrid sharding; half precision, which leaves float64 as it is."""
    plain = Case(str(tmp_path / "whole"), {"kind": "single"}, {**ADAMW, "max_norm": 0.1, "precision": "fp16"})
    plain = replace(plain, num_eval_rows=5, every=2)
    ((expected,),) = ranks.run(1, train_several, [plain])
    for way in (FSDP, ALWAYS):
        directory = str(tmp_path / way.get("reshard_after_forward", "auto"))
        case = replace(plain, directory=directory, parallel={**way, **settings}, save=3)
        again = replace(case, directory=f"{directory}-2", load=checkpoint(directory, 3), save=None)
        for seen, rest in ranks.run(4, train_several, [case, again]):
            check(seen, expected)
            check(rest, expected, since=3)


def test_a_model_without_values_gets_the_same_ones_in_any_world(ranks: RankPool, tmp_path: Path) -> None:
    case = Case(str(tmp_path / "one"), {"kind": "single"}, make=on_meta)
    ((expected,),) = ranks.run(1, train_several, [case])
    assert len({float(value) for value in expected.weights["0.weight"].flatten()}) == 32
    for (found,) in ranks.run(3, train_several, [replace(case, directory=str(tmp_path / "three"), parallel=FSDP)]):
        check(found, expected)


def test_values_come_from_rank_0(ranks: RankPool, tmp_path: Path) -> None:
    case = Case(str(tmp_path / "all"), FSDP, make=Tied)
    cases = [case, replace(case, directory=str(tmp_path / "first"), make=on_meta_but_on_rank_0)]
    for expected, found in ranks.run(2, train_several, cases):
        check(found, expected)


def save_on_rank_0(directory: str) -> None:
    rows = MaskedRows(16)
    with Trainer(Deep(), config_of(Base(directory, {"parallel": FSDP, **STEPS})), rows, loss=MaskedRegression([])) as t:
        for _ in t.steps():
            if t.world.rank == 0:
                t.save()


def call_the_model(directory: str) -> None:
    rows = MaskedRows(16)
    with Trainer(Deep(), config_of(Base(directory, {"parallel": FSDP, **STEPS})), rows, loss=MaskedRegression([])) as t:
        for _ in t.steps():
            if t.world.rank == 0:
                t.model(torch.zeros(1, 4, dtype=torch.float64))


STEPS: dict[str, Any] = {"train": {"global_batch": 8, "max_steps": 3}}


def test_what_one_rank_does_alone_is_an_error_soon(ranks: RankPool, tmp_path: Path) -> None:
    for ending in failures_of(ranks, 2, save_on_rank_0, str(tmp_path / "save")):
        assert ending.name in ("GroupError", "PeerFailed") and "different places" in ending.message
    zero, one = failures_of(ranks, 2, call_the_model, str(tmp_path / "call"))
    assert zero.name == "DrumlineError" and "called by itself" in zero.message
    assert one.name == "PeerFailed" and "called by itself" in one.message


class Failing(MaskedRegression):
    """Rank 1 fails in its loss, when the others are about to gather or to reduce."""

    def loss(self, outputs: torch.Tensor, batch: Any) -> Any:
        if int(batch["id"][0]) == 4:
            raise ValueError("no loss here")
        return super().loss(outputs, batch)


def fail_on_rank_1(directory: str) -> None:
    train = {**STEPS["train"], "shuffle": False}
    config = config_of(Base(directory, {"parallel": ALWAYS, "train": train}))
    with Trainer(Deep(), config, MaskedRows(16), loss=Failing([])) as trainer:
        trainer.fit()


def test_the_others_end_when_one_fails(ranks: RankPool, tmp_path: Path) -> None:
    zero, one = failures_of(ranks, 2, fail_on_rank_1, str(tmp_path / "run"))
    assert one.name == "ValueError"
    assert zero.name == "PeerFailed" and "no loss here" in zero.message


def test_a_model_cannot_be_on_meta_on_rank_0_alone(ranks: RankPool, tmp_path: Path) -> None:
    for ending in failures_of(ranks, 2, meta_on_rank_0, str(tmp_path / "run")):
        assert ending.name == "ConfigError" and "on the meta device on rank 0" in ending.message


def meta_on_rank_0(directory: str) -> None:
    model: nn.Module = Deep()
    config = config_of(Base(directory, {"parallel": FSDP, **STEPS}))
    with Trainer(model, config, MaskedRows(16), loss=MaskedRegression([])) as trainer:
        if os.environ["RANK"] == "0":
            model.to("meta")
        trainer.fit()
