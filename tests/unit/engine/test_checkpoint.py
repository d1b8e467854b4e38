from __future__ import annotations

import json
import os
import resource
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from drumline import Callback, StepInfo, Trainer
from drumline.engine.checkpoint import read_checkpoint
from drumline.errors import DataError
from drumline.manifest import MANIFEST, check, read_manifest
from drumline.rundir import read_lines
from tests.unit.engine.training import assert_same, events, losses, make_model, rows, state_of, trainer_of


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file may grow past this size: what stands in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class Diary(Callback):
    """What happened, in order, with the weights after each update."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.weights: dict[int, dict[str, Tensor]] = {}

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        self.entries.append(f"update {info.step}")
        self.weights[info.step] = state_of(trainer.model)

    def on_save(self, trainer: Trainer, path: Path) -> None:
        assert check(path) == []
        self.entries.append(f"save {path.name}")


FORMS = ["whole", "sharded"]
FIVE: dict[str, Any] = {"train": {"epochs": 2, "global_batch": 4}}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_saved_is_read_and_gone_on_from(tmp_path: Path, form: str) -> None:
    with trainer_of(tmp_path / "first", checkpoint={"format": form}, **FIVE) as first:
        infos = first.steps()
        next(infos)
        path = first.save()
        saved = state_of(first.model)
        expected = losses(list(infos))
    assert path == tmp_path / "first" / "checkpoints" / "step_1"
    assert path.stat().st_mode & 0o777 == 0o700
    files = [MANIFEST, "state.pt"] if form == "whole" else [".metadata", "__0_0.distcp", MANIFEST, "state.pt"]
    assert names(path) == files
    manifest = read_manifest(path)
    assert (manifest.step, manifest.kind, manifest.format, manifest.world_size) == (1, "single", form, 1)
    found = read_checkpoint(path)
    assert_same(found["strategy"]["model"], saved)
    assert found["progress"]["step"] == 1
    with trainer_of(tmp_path / "second", **FIVE) as second:
        second.load(path)
        assert losses(list(second.steps())) == expected


def test_both_forms_hold_the_same(tmp_path: Path) -> None:
    found = []
    for form in FORMS:
        with trainer_of(
            tmp_path / form, checkpoint={"format": form}, train={"optimizer": {"name": "adamw"}}
        ) as trainer:
            trainer.fit()
            found.append(read_checkpoint(trainer.save()))
    flat = [json.dumps(state, default=lambda tensor: tensor.tolist(), sort_keys=True) for state in found]
    assert flat[0] == flat[1]


def test_tied_weights_are_one_in_every_form(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3).double()
            self.other = nn.Linear(3, 3).double()
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.other(self.one(x))
            return out

    for form in FORMS:
        with trainer_of(tmp_path / form, model=Tied(), checkpoint={"format": form, "every": 2}) as trainer:
            trainer.fit()
        found = read_checkpoint(tmp_path / form / "checkpoints" / "step_2")["strategy"]["model"]
        assert found["one.weight"].data_ptr() == found["other.weight"].data_ptr()
        assert found["one.bias"].data_ptr() != found["other.bias"].data_ptr()


@pytest.mark.parametrize("form", FORMS)
def test_training_goes_on_while_a_slow_write_is_under_way(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands still until update 5 has ended; what it then gets is the state after update 3."""
    diary, goes_on = Diary(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert goes_on.wait(120)
        fsync(descriptor)

    def watch(trainer: Trainer, info: StepInfo) -> None:
        if info.step == 5:
            assert names(tmp_path / "run" / "checkpoints")[0].endswith(".tmp")
            goes_on.set()

    monkeypatch.setattr(os, "fsync", slow)
    checkpoint = {"every": 3, "format": form}
    options: dict[str, Any] = {"callbacks": [diary, watch], "checkpoint": checkpoint}
    with trainer_of(tmp_path / "run", train={"epochs": 3, "global_batch": 5}, **options) as trainer:
        goes_on_at = [info.step for info in trainer.steps()]
    assert goes_on_at == [1, 2, 3, 4, 5, 6]
    assert diary.entries.index("save step_3") > diary.entries.index("update 4")
    assert sorted(entry for entry in diary.entries if "save" in entry) == ["save step_3", "save step_6"]
    for step in (3, 6):
        found = read_checkpoint(tmp_path / "run" / "checkpoints" / f"step_{step}")
        assert_same(found["strategy"]["model"], diary.weights[step])
        assert found["progress"]["step"] == step


def test_a_save_that_has_ended_is_told_of_after_the_next_update(tmp_path: Path) -> None:
    diary = Diary()
    with trainer_of(tmp_path / "run", callbacks=[diary], checkpoint={"every": 2}, train={"epochs": 2}) as trainer:
        for info in trainer.steps():
            if info.step == 2:
                thread = trainer._run.checkpoints._thread
                assert thread is not None
                thread.join()
    assert diary.entries[:4] == ["update 1", "update 2", "save step_2", "update 3"]


def test_a_full_disk_is_named_and_the_trainer_lives_on(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer:
        infos = trainer.steps()
        next(infos)
        with disk_of(2000), pytest.raises(DataError, match="File too large") as caught:
            trainer.save()
        assert "free space" in caught.value.fix
        assert names(tmp_path / "run" / "checkpoints") == []
        next(infos)
        assert trainer.save() == tmp_path / "run" / "checkpoints" / "step_2"
        assert [info.step for info in infos] == [3]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_periodic_save_that_fails_is_a_warning(
    tmp_path: Path, form: str, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier ones stay, training goes on, and the next save is made."""
    with trainer_of(tmp_path / "plain", **FIVE) as plain:
        expected = losses(list(plain.steps()))
    checkpoint = {"every": 1, "format": form, "asynchronous": asynchronous, "keep": None}
    found = []
    with trainer_of(tmp_path / "run", checkpoint=checkpoint, **FIVE) as trainer:
        infos = trainer.steps()
        found.append(next(infos))
        trainer._run.checkpoints.finish(trainer._run)
        with disk_of(1500):
            found.append(next(infos))
            trainer._run.checkpoints.finish(trainer._run)
            assert trainer._run.saved_at is None
        found += infos
    assert losses(found) == expected
    assert names(tmp_path / "run" / "checkpoints") == ["step_1", "step_3", "step_4", "step_5", "step_6"]
    assert all(check(path) == [] for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert "step_2 could not be written" in caplog.text and "training goes on" in caplog.text
    failed = [line for line in read_lines(tmp_path / "run" / "events.jsonl") if line["event"] == "checkpoint_failed"]
    assert [line["step"] for line in failed] == [2]
    assert "File too large" in failed[0]["message"]
    assert events(tmp_path / "run").count("checkpoint") == 5


def test_the_last_save_is_tried_again_and_must_succeed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": {"every": 3, "at_end": True}}
    with trainer_of(tmp_path / "run", **options) as trainer:
        infos = trainer.steps()
        next(infos)
        next(infos)
        with disk_of(2000), pytest.raises(DataError, match="could not be written"):
            list(infos)
    assert names(tmp_path / "run" / "checkpoints") == []
    assert events(tmp_path / "run").count("checkpoint_failed") == 2


def test_free_space_is_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        total: int
        used: int
        free: int

    with trainer_of(tmp_path / "run") as trainer:
        next(trainer.steps())
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40, 2**20))
        with pytest.raises(DataError, match=r"it takes 0\.00 GiB, and 0\.00 GiB are free"):
            trainer.save()
        assert names(tmp_path / "run" / "checkpoints") == []
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 0, 2**30))
        trainer.save()


def test_newest_and_best_are_kept(tmp_path: Path) -> None:
    checkpoint = {"every": 1, "keep": 2, "keep_best": 1}
    options: dict[str, Any] = {"evaluate": {"every": 1}, "eval_data": rows(5), "train": {"epochs": 3}}
    with trainer_of(tmp_path / "run", checkpoint=checkpoint, **options) as trainer:
        result = trainer.fit()
    values = {int(each["step"]): each["loss"] for each in result.history}
    best = min(values, key=lambda step: values[step])
    folder = tmp_path / "run" / "checkpoints"
    assert best < 8
    assert names(folder) == sorted(f"step_{step}" for step in {best, 8, 9})
    assert read_manifest(folder / f"step_{best}").metrics["loss"] == values[best]


def test_what_is_damaged_does_not_count_as_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    with trainer_of(tmp_path / "run", checkpoint={"every": 1, "keep": 2}, train={"epochs": 2}) as trainer:
        infos, seen = trainer.steps(), list[list[str]]()
        for _ in range(4):
            next(infos)
            trainer._run.checkpoints.finish(trainer._run)
            if not seen:
                (folder / "step_1" / "state.pt").write_text("damaged")
            seen.append(names(folder))
    assert seen == [["step_1"], ["step_2"], ["step_2", "step_3"], ["step_3", "step_4"]]


def test_saves_by_time(tmp_path: Path) -> None:
    now = 0.0
    with trainer_of(tmp_path / "run", checkpoint={"every_s": 10, "keep": None}, train={"epochs": 3}) as trainer:
        infos = trainer.steps()
        trainer._run.clock = lambda: now
        for info in infos:
            now += 4
            saved = info.step
    assert saved == 9
    steps = sorted(int(name.removeprefix("step_")) for name in names(tmp_path / "run" / "checkpoints"))
    assert steps == [4, 7]


def test_a_folder_left_by_a_kill_is_no_obstacle(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer:
        next(trainer.steps())
        (tmp_path / "run" / "checkpoints" / ".step_1.0011aabb.tmp").mkdir(parents=True)
        trainer.save()
        trainer.save()  # of the same update again
    assert names(tmp_path / "run" / "checkpoints") == [".step_1.0011aabb.tmp", "step_1"]


def test_closing_early_waits_for_what_is_being_written(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", checkpoint={"every": 1}) as trainer:
        next(trainer.steps())
    assert names(tmp_path / "run" / "checkpoints") == ["step_1"]
    assert check(tmp_path / "run" / "checkpoints" / "step_1") == []


def test_what_is_under_way_when_the_run_fails_gets_to_its_place(tmp_path: Path) -> None:
    def fails(trainer: Trainer, info: StepInfo) -> None:
        raise ZeroDivisionError

    trainer = trainer_of(tmp_path / "run", checkpoint={"every": 1}, callbacks=[fails])
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert names(tmp_path / "run" / "checkpoints") == ["step_1"]


def damage_by_a_byte(path: Path) -> None:
    (path / "state.pt").write_bytes((path / "state.pt").read_bytes()[:-1])


def delete_a_shard(path: Path) -> None:
    (path / "__0_0.distcp").unlink()


@pytest.mark.parametrize(("form", "damage"), [("whole", damage_by_a_byte), ("sharded", delete_a_shard)])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, form: str, damage: Any) -> None:
    with trainer_of(tmp_path / "first", checkpoint={"format": form}) as trainer:
        next(trainer.steps())
        path = trainer.save()
    damage(path)
    for read in (read_checkpoint, trainer_of(tmp_path / "second").load):
        with pytest.raises(DataError, match=r"step_1 cannot be used: (state\.pt has|__0_0\.distcp is missing)"):
            read(path)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "first") as trainer:
        trainer.fit()
        path = trainer.save()
    with trainer_of(tmp_path / "second", model=torch.nn.Linear(3, 1).double()) as trainer:
        with pytest.raises(DataError, match="does not fit"):
            trainer.load(path)
        with pytest.raises(DataError, match="no complete checkpoint"):
            trainer.load(tmp_path)
        assert trainer.fit().steps == 3


def scale_of(state: Mapping[str, Any]) -> Any:
    return state["strategy"]["learners"]["main"]["loss_scale"]


@pytest.mark.parametrize("form", FORMS)
def test_a_live_scaler_goes_on_to_the_bit(tmp_path: Path, form: str) -> None:
    """fp16: some updates are skipped, the scale has come down, and the next five losses are the same bits."""
    model = make_model().float()

    def data() -> Any:
        x, y = rows(40).tensors
        return torch.utils.data.TensorDataset(x.float(), y.float())

    options: dict[str, Any] = {
        "train": {"epochs": 3, "precision": "fp16", "optimizer": {"name": "adamw"}, "global_batch": 4},
        "checkpoint": {"format": form},
    }

    def steep(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        error: Tensor = (model(x).float() - y).square().mean() * 30
        return error

    with trainer_of(tmp_path / "first", data(), model, loss=steep, **options) as first:
        infos = first.steps()
        before = [next(infos) for _ in range(12)]
        path = first.save()
        expected = losses([next(infos) for _ in range(5)])
    assert before[-1].logged is not None and before[-1].logged["skipped"] > 0
    assert scale_of(read_checkpoint(path)) is not None
    with trainer_of(tmp_path / "second", data(), make_model().float(), loss=steep, **options) as second:
        second.load(path)
        infos = second.steps()
        assert losses([next(infos) for _ in range(5)]) == expected
