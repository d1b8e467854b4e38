"""Case 8: what was saved of a model, however it was wrapped, loads into it, however it is wrapped now."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from drumline import Trainer
from drumline.build.export import export
from drumline.engine.checkpoint import read_checkpoint
from drumline.engine.weight_files import read_file
from drumline.errors import DataError
from drumline.parallel.keys import bare_keys, load_weights
from drumline.rundir import RunDir
from tests.rank_pool import RankPool
from tests.ranks.sharded import Block, whole
from tests.ranks.training import WIDTH, Case, MaskedRegression, MaskedRows, config_of

Weights = dict[str, Tensor]

FSDP: dict[str, Any] = {"kind": "fsdp", "min_params": 30}


class Net(nn.Module):
    """Blocks, one of them under the name that wrappers have too, between tied layers, and statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(8, WIDTH, bias=False)
        self.module = nn.Sequential(Block(), Block())
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(8, WIDTH, bias=False)
        self.last.weight = self.first.weight
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.norm(self.module(x @ self.first.weight))).sum(-1, keepdim=True)
        return outputs


def as_it_is(graph: Any, inputs: Any) -> Any:
    """A backend that compiles nothing, and costs no import."""
    return graph.forward


def compiled(module: Any) -> Any:
    return torch.compile(module, backend=as_it_is)


def part_compiled(model: Net) -> nn.Module:
    model.module[0] = compiled(model.module[0])
    return model


def sharded(model: nn.Module) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return model


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda model: model,
    "DDP": DistributedDataParallel,
    "compiled": compiled,
    "DDP(compiled)": lambda model: DistributedDataParallel(compiled(model)),
    "compiled(DDP)": lambda model: compiled(DistributedDataParallel(model)),
    "part compiled": part_compiled,
}
"""What people wrap a model in before they save or load it."""

HANDED_IN: dict[str, Callable[[Any], Any]] = {name: WRAPPERS[name] for name in ("plain", "compiled", "part compiled")}


def moved() -> Net:
    """Other weights than a new one's, and other statistics."""
    model = Net()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, dtype=p.dtype))
    model(torch.randn(3, 6, WIDTH, dtype=torch.float64))
    return model


def save_all(folder: str) -> tuple[Weights, dict[str, list[str]]]:
    """A file of each wrapping of the same weights; returns these, and the names in each file."""
    model = moved()
    expected, names = copy.deepcopy(dict(model.state_dict())), {}
    for name, wrap in [*WRAPPERS.items(), ("fully_shard", sharded)]:
        weights = whole(wrap(copy.deepcopy(model)))
        names[name] = list(weights)
        if torch.distributed.get_rank() == 0:
            torch.save(weights, Path(folder) / f"{name}.pt")
    return expected, names


def load_each_into_each(folder: str) -> dict[tuple[str, str], Weights]:
    """What every wrapping has come to, by bare names, after it has loaded every file."""
    found = {}
    for file in sorted(Path(folder).glob("*.pt")):
        saved = torch.load(file, map_location="cpu", weights_only=True)
        for name, wrap in WRAPPERS.items():
            model = wrap(Net())
            load_weights(model, saved)
            found[file.stem, name] = copy.deepcopy(bare_keys(model, model.state_dict()))
    return found


def trainer_of(directory: str, wrap: Callable[[Any], Any], parallel: dict[str, Any]) -> Trainer:
    train = {"global_batch": 8, "max_steps": 1, "averaging": {"kind": "ema", "decay": 0.5}}
    optimizer = {"optimizer": {"name": "adamw"}, **train}
    config = config_of(
        Case(directory, {"train": optimizer, "parallel": {"timeout_s": 20, **parallel}, "hardware": {"device": "cpu"}})
    )
    return Trainer(wrap(Net()), config, MaskedRows(16), loss=MaskedRegression([]))


def begin_with(folder: str, files: list[str], parallel: dict[str, Any]) -> dict[tuple[str, str], Weights]:
    """Whole weights of runs that were given each file, for each form in which a model may be handed in."""
    found = {}
    for name, wrap in HANDED_IN.items():
        with trainer_of(f"{folder}/{parallel['kind']} {name}", wrap, parallel) as trainer:
            for file in files:
                trainer.load(f"{folder}/{file}.pt")
                found[file, name] = bare_keys(trainer.model, whole(trainer.model))
    return found


def save_runs(folder: str, parallel: dict[str, Any]) -> dict[str, Weights]:
    """Train an update of each form, and save it; returns whole weights by bare names."""
    found = {}
    for name, wrap in HANDED_IN.items():
        with trainer_of(f"{folder}/{parallel['kind']} {name}", wrap, parallel) as trainer:
            with torch.compiler.set_stance("force_eager"):  # how it is computed is no matter here
                trainer.fit()
            trainer.save()
            trainer._run.checkpoints.finish(trainer._run)
            found[name] = bare_keys(trainer.model, whole(trainer.model))
    return found


def go_on_with(folder: str, runs: list[str], parallel: dict[str, Any]) -> dict[tuple[str, str], tuple[Weights, Any]]:
    """Whole weights and state of runs of each form that were given each run's checkpoint; state on rank 0."""
    found = {}
    for name, wrap in HANDED_IN.items():
        with trainer_of(f"{folder}/again {parallel['kind']} {name}", wrap, parallel) as trainer:
            for run in runs:
                trainer.load(f"{folder}/{run}/checkpoints/step_1")
                weights, state = bare_keys(trainer.model, whole(trainer.model)), trainer._run.strategy.state()
                found[run, name] = copy.deepcopy((weights, (state["average"], state["learners"]["main"]["optimizer"])))
    return found


def adopt(folder: str, parallel: dict[str, Any]) -> dict[int, Any]:
    """What a run's optimizer knows of each parameter once it was given a file of somebody's, whole on rank 0."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    config = config_of(
        Case(f"{folder}/{parallel['kind']}", {"train": {"global_batch": 8, "max_steps": 1}, "parallel": parallel}),
        hardware={"device": "cpu"},
    )
    with Trainer(model, config, MaskedRows(16), loss=MaskedRegression([]), optimizer=optimizer) as trainer:
        trainer.load(f"{folder}/theirs.pt")
        state: dict[int, Any] = trainer._run.strategy.state()["learners"]["main"]["optimizer"]["state"]
        found = copy.deepcopy(state)
        trainer.fit()
    return found


def refused(folder: str, parallel: dict[str, Any]) -> tuple[str, bool]:
    """The error of a run that is given a file which only rank 0 has where it is, and whether its weights stayed."""
    with trainer_of(f"{folder}/refused {parallel['kind']}", WRAPPERS["plain"], parallel) as trainer:
        before = whole(trainer.model)
        try:
            with contextlib.chdir(f"{folder}/{trainer.world.rank}"):
                trainer.load("theirs.pt")
        except DataError as error:
            after = whole(trainer.model)
            return error.problem, all(torch.equal(before[key], after[key]) for key in before)
    raise AssertionError("it was taken")


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_each_wrapping_loads_each(ranks: RankPool, tmp_path: Path) -> None:
    (expected, names), _ = ranks.run_grouped(2, save_all, str(tmp_path))
    assert names["compiled(DDP)"][0] == "_orig_mod.module.first.weight"
    assert names["DDP(compiled)"][0] == "module._orig_mod.first.weight"
    assert "module.0._orig_mod.inner.weight" in names["part compiled"]
    for found in ranks.run_grouped(2, load_each_into_each, str(tmp_path)):
        assert len(found) == 7 * 6
        for weights in found.values():
            same(weights, expected)
    for world, parallel in ((1, {"kind": "single"}), (2, {"kind": "ddp"}), (2, FSDP)):
        for begun in ranks.run(world, begin_with, str(tmp_path), list(names), parallel, timeout=60):
            assert len(begun) == 7 * 3
            for weights in begun.values():
                same(weights, expected)


def test_runs_of_every_form_go_on_from_every_form(ranks: RankPool, tmp_path: Path) -> None:
    """Weights, their average and the moments, from and into every kind."""
    bare = list(Net().state_dict())
    kinds = ((1, {"kind": "single"}), (2, {"kind": "ddp"}), (2, FSDP))
    expected: dict[str, Weights] = {}
    for world, parallel in kinds:
        saved, *_ = ranks.run(world, save_runs, str(tmp_path), parallel, timeout=60)
        expected |= {f"{parallel['kind']} {name}": weights for name, weights in saved.items()}
        of_run = RunDir(tmp_path / f"{parallel['kind']} part compiled")
        assert export(of_run, tmp_path / "out" / str(parallel["kind"]), None)["averaged"]
    states = {run: read_checkpoint(tmp_path / run / "checkpoints" / "step_1")["strategy"] for run in expected}
    for state in states.values():
        assert list(state["model"]) == bare
        assert set(state["average"]["averages"]) <= set(bare)
    for _, parallel in kinds:
        averages = states[f"{parallel['kind']} part compiled"]["average"]["averages"]
        same(read_file(tmp_path / "out" / str(parallel["kind"]) / "model.safetensors"), averages)
    for world, parallel in kinds:
        first, *others = ranks.run(world, go_on_with, str(tmp_path), list(expected), parallel, timeout=60)
        assert len(first) == 9 * 3
        for (run, _), (weights, (average, optimizer)) in first.items():
            same(weights, expected[run])
            same(average["averages"], states[run]["average"]["averages"])
            same(optimizer["state"], states[run]["learners"]["main"]["optimizer"]["state"])
        for found in others:
            for (run, _), (weights, _) in found.items():
                same(weights, expected[run])


def test_an_optimizer_of_somebodys_is_adopted_by_every_kind(ranks: RankPool, tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    model(torch.randn(3, 6, WIDTH, dtype=torch.float64)).sum().backward()
    optimizer.step()
    theirs = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "epoch": 4}
    torch.save(theirs, tmp_path / "theirs.pt")
    for world, kind in ((1, "single"), (1, "data_parallel"), (2, "ddp"), (2, "fsdp")):
        parallel = {**(FSDP if kind == "fsdp" else {"kind": kind}), "timeout_s": 20}
        first, *_ = ranks.run(world, adopt, str(tmp_path), {**parallel, **({"replicas": 2} if "data" in kind else {})})
        same(first, optimizer.state_dict()["state"])


def test_a_file_that_one_rank_cannot_read_is_refused_by_all(ranks: RankPool, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"{rank}").mkdir()
    torch.save(moved().state_dict(), tmp_path / "0" / "theirs.pt")
    for parallel in ({"kind": "ddp"}, FSDP):
        for problem, stayed in ranks.run(2, refused, str(tmp_path), parallel):
            assert problem == "there is no file or folder theirs.pt"
            assert stayed
