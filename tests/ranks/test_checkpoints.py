"""Checkpoints that several ranks make together: on one file system and on several, in both forms."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline import Callback, Trainer
from drumline.engine.checkpoint import read_checkpoint
from drumline.errors import DataError
from drumline.manifest import MANIFEST, check, newest_valid, read_manifest
from drumline.parallel.fsdp_shards import Layout
from drumline.parallel.parts import InParts
from drumline.rundir import RunDir, read_lines
from tests.rank_pool import RankError, RankPool
from tests.ranks.sharded import FSDP, Deep
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, largest_difference

DDP: dict[str, Any] = {"kind": "ddp", "timeout_s": 20}
ADAMW: dict[str, Any] = {"global_batch": 8, "optimizer": {"name": "adamw", "weight_decay": 0.1}, "lr": 0.01}
LONGEST_DELAY_S = 0.002
TOUCHES = ("fsync", "replace", "mkdir", "unlink", "rmdir", "stat", "open", "listdir")
"""Functions of os that every file operation of a save goes through."""


@contextmanager
def delays(seed: int) -> Iterator[None]:
    """A random delay before each file operation."""
    chance = random.Random(seed)
    originals = {name: getattr(os, name) for name in TOUCHES}

    def late(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            time.sleep(chance.random() * LONGEST_DELAY_S)
            return original(*args, **kwargs)

        return call

    try:
        for name, original in originals.items():
            setattr(os, name, late(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The rank works there, so that a relative run directory is its own."""
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def place_of(folder: str, own: bool) -> Path:
    return Path(folder) / (f"rank_{os.environ['RANK']}" if own else "all")


class Checked(Callback):
    """Every save that is told of is complete then."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save(self, trainer: Trainer, path: Path) -> None:
        assert check(path) == []
        self.steps.append(read_manifest(path).step)


def make_trainer(parallel: Mapping[str, Any], checkpoint: Mapping[str, Any], *callbacks: Any, **train: Any) -> Trainer:
    case = Case("run", {"train": {"epochs": 1, **ADAMW, **train}})
    config = config_of(case, parallel=parallel, checkpoint={"at_end": False, **checkpoint})
    model: nn.Module = Deep()
    return Trainer(model, config, MaskedRows(40), loss=MaskedRegression([]), callbacks=list(callbacks))


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    strategy = trainer._run.strategy
    state = strategy.state(keep=True) if isinstance(strategy, InParts) else strategy.state()
    return {name: value.clone() for name, value in state["model"].items()}


def save_often(folder: str, own: bool, parallel: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> list[str]:
    told = Checked()
    with inside(place_of(folder, own)), delays(int(os.environ["RANK"])):
        with make_trainer(parallel, {"every": 1, "keep": 1, **checkpoint}, told, epochs=10) as trainer:
            assert trainer.fit().steps == 50
        assert told.steps == list(range(1, 51))
        return sorted(path.name for path in Path("run/checkpoints").iterdir())


@pytest.mark.system
@pytest.mark.parametrize("own", [False, True], ids=["shared", "per_rank"])
@pytest.mark.parametrize(
    ("parallel", "checkpoint"),
    [(DDP, {}), (DDP, {"asynchronous": False}), (DDP, {"format": "sharded"}), (FSDP, {}), (FSDP, {"format": "whole"})],
    ids=["ddp", "ddp_waiting", "ddp_sharded", "fsdp", "fsdp_whole"],
)
def test_fifty_saves_with_random_delays(
    ranks: RankPool, tmp_path: Path, own: bool, parallel: dict[str, Any], checkpoint: dict[str, Any]
) -> None:
    """Case 12: no error, and nothing but the newest one is left, wherever it is kept."""
    for listing in ranks.run(2, save_often, str(tmp_path), own, parallel, checkpoint, timeout=120):
        assert listing == ["step_50"]
    assert not list(tmp_path.rglob("*.tmp"))  # once all ranks are done: rank 0 writes how a run ended after the others
    for folder in tmp_path.iterdir():
        manifest = read_manifest(folder / "run" / "checkpoints" / "step_50")
        assert {entry.node for entry in manifest.files} == ({0, 1} if own else {0})
        assert manifest.node == (1 if folder.name == "rank_1" else 0)


def save_after(folder: str, own: bool, parallel: Mapping[str, Any], form: str, steps: int) -> dict[str, Tensor]:
    with inside(place_of(folder, own)), make_trainer(parallel, {"format": form, "keep": None}) as trainer:
        infos = trainer.steps()
        for _ in range(steps):
            next(infos)
        trainer.save()
        for _ in infos:
            pass
        return weights_of(trainer)


def go_on(folder: str, own: bool, path: str, parallel: Mapping[str, Any]) -> dict[str, Tensor]:
    origin = Path(path) if not own else place_of(path, own) / "run/checkpoints/step_2"
    with inside(Path(folder) / os.environ["RANK"] if own else Path(folder)), make_trainer(parallel, {}) as trainer:
        trainer.load(origin)
        assert trainer.fit().steps == 5
        return weights_of(trainer)


@pytest.mark.parametrize("form", ["whole", "sharded"])
@pytest.mark.parametrize("saver", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_any_form_is_gone_on_from_by_any_kind(
    ranks: RankPool, tmp_path: Path, form: str, saver: dict[str, Any]
) -> None:
    expected, *_ = ranks.run(2, save_after, str(tmp_path / "first"), False, saver, form, 2)
    path = tmp_path / "first" / "all" / "run" / "checkpoints" / "step_2"
    assert check(path) == []
    shards = sorted(file.name for file in path.glob("*.distcp"))
    assert shards == (["__0_0.distcp", "__1_0.distcp"] if form == "sharded" else [])
    for world, loader in ((1, {"kind": "single"}), (2, DDP), (3, FSDP)):
        name = f"{loader['kind']}_{world}"
        found, *_ = ranks.run(world, go_on, str(tmp_path / name), False, str(path), loader)
        assert largest_difference(found, expected) < 1e-12


def save_and_load_apart(folder: str, path: str | None) -> list[float]:
    """Nobody puts shards together, and nobody cuts whole tensors that are larger than one number."""

    def forbidden(self: Layout, whole: Tensor, *args: Any) -> Tensor:
        assert whole.device.type == "meta", "a whole tensor"
        return cut(self, whole)

    cut, join = Layout.cut, Layout.join
    with inside(Path(folder)), make_trainer(FSDP, {}) as trainer:
        infos = trainer.steps()
        if path is None:
            next(infos)
        else:
            trainer._run  # noqa: B018  (set up, which cuts whole weights)
        Layout.cut, Layout.join = forbidden, forbidden  # type: ignore[method-assign, assignment]
        try:
            if path is None:
                trainer.save()
            else:
                trainer.load(path)
        finally:
            Layout.cut, Layout.join = cut, join  # type: ignore[method-assign]
        return [info.logged["loss"] for info in infos if info.logged is not None]


def test_shards_are_saved_and_loaded_without_gathering(ranks: RankPool, tmp_path: Path) -> None:
    expected, *_ = ranks.run(3, save_and_load_apart, str(tmp_path / "first"), None)
    path = tmp_path / "first" / "run" / "checkpoints" / "step_1"
    for world in (3, 2):
        found, *_ = ranks.run(world, save_and_load_apart, str(tmp_path / str(world)), str(path))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_parts_on_several_file_systems(ranks: RankPool, tmp_path: Path) -> None:
    """The same ranks read them where they are; others need them in one folder, and say so."""
    expected, *_ = ranks.run(2, save_after, str(tmp_path / "first"), True, FSDP, "sharded", 2)
    folders = [tmp_path / "first" / f"rank_{rank}" / "run" / "checkpoints" / "step_2" for rank in range(2)]
    assert [sorted(file.name for file in folder.iterdir()) for folder in folders] == [
        [".metadata", f"__{rank}_0.distcp", MANIFEST, "state.pt"] for rank in range(2)
    ]
    found, *_ = ranks.run(2, go_on, str(tmp_path / "same"), True, str(tmp_path / "first"), FSDP)
    assert largest_difference(found, expected) == 0
    with pytest.raises(DataError, match="cannot be reached"):
        read_checkpoint(folders[0])
    with pytest.raises(RankError, match="cannot be reached by rank 0 of 1"):
        ranks.run(1, go_on, str(tmp_path / "one"), False, str(folders[0]), {"kind": "single"})
    shutil.copy(folders[1] / "__1_0.distcp", folders[0])
    ((found),) = ranks.run(1, go_on, str(tmp_path / "joined"), False, str(folders[0]), {"kind": "single"})
    assert largest_difference(found, expected) < 1e-12


def fail_once(folder: str, own: bool, parallel: Mapping[str, Any]) -> list[int]:
    """The disk of rank 1 is full at the second save."""
    told = Checked()
    with inside(place_of(folder, own)), make_trainer(parallel, {"every": 1, "keep": None}, told) as trainer:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for info in trainer.steps():
            trainer._run.checkpoints.finish(trainer._run)
            full = info.step == 1 and os.environ["RANK"] == "1"
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if full else soft, hard))
    return told.steps


@pytest.mark.parametrize(("own", "parallel"), [(True, DDP), (False, FSDP), (True, FSDP)], ids=["ddp", "fsdp", "nodes"])
def test_a_full_disk_on_one_rank_is_a_warning_on_all(
    ranks: RankPool, tmp_path: Path, own: bool, parallel: dict[str, Any]
) -> None:
    assert ranks.run(2, fail_once, str(tmp_path), own, parallel) == [[1, 3, 4, 5]] * 2
    assert "File too large" in ranks.output[0] and "training goes on" in ranks.output[0]
    for folder in tmp_path.iterdir():
        listing = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
        assert listing == ["step_1", "step_3", "step_4", "step_5"]
    first = tmp_path / ("rank_0" if own else "all") / "run" / "events.jsonl"
    assert [line["step"] for line in read_lines(first) if line["event"] == "checkpoint_failed"] == [2]


def test_a_lost_shard_is_passed_over(ranks: RankPool, tmp_path: Path) -> None:
    ranks.run(2, fail_once, str(tmp_path), False, FSDP)
    run = RunDir(tmp_path / "all" / "run")
    (run.checkpoint_of(5) / "__1_0.distcp").unlink()
    (run.checkpoint_of(4) / MANIFEST).unlink()
    path, skipped = newest_valid(run)
    assert path == run.checkpoint_of(3)
    assert ["__1_0.distcp is missing" in skipped[0][1], "no complete checkpoint" in skipped[1][1]] == [True, True]
    with pytest.raises(RankError, match=r"__1_0\.distcp is missing"):
        ranks.run(2, go_on, str(tmp_path / "again"), False, str(run.checkpoint_of(5)), FSDP)


def save_by_time(folder: str) -> list[int]:
    told = Checked()
    checkpoint = {"every_s": 1e-6, "keep": None, "asynchronous": False}
    with inside(Path(folder)), make_trainer(DDP, checkpoint, told) as trainer:
        trainer._run.clock = (lambda: float("inf")) if os.environ["RANK"] == "1" else time.perf_counter
        trainer.fit()
    return told.steps


def test_saves_by_time_are_made_together(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, save_by_time, str(tmp_path)) == [[1, 2, 3, 4, 5]] * 2


def fail_while_writing(folder: str) -> None:
    """Rank 1 fails while rank 0, which alone writes, still has to."""

    def fails(trainer: Trainer, info: Any) -> None:
        if os.environ["RANK"] == "1":
            raise ZeroDivisionError

    with inside(Path(folder)), delays(0):
        make_trainer(DDP, {"every": 1}, fails).fit()


def test_a_save_under_way_gets_to_its_place_though_another_rank_fails(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="ZeroDivisionError"):
        ranks.run(2, fail_while_writing, str(tmp_path))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_1"]
    assert check(tmp_path / "run" / "checkpoints" / "step_1") == []
