from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline.engine.checkpoint import MANIFEST, STATE, read_checkpoint, write_checkpoint
from drumline.errors import DataError
from drumline.rundir import read_json, write_json
from tests.unit.engine.training import trainer_of

VALUES: dict[str, Any] = {"weights": torch.arange(1000.0), "step": 3}


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


def test_round_trip(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step_3", VALUES)
    found = read_checkpoint(tmp_path / "step_3")
    assert torch.equal(found["weights"], VALUES["weights"])
    assert found["step"] == 3
    assert names(tmp_path) == ["step_3"]
    assert (tmp_path / "step_3").stat().st_mode & 0o777 == 0o700


def test_writing_again_replaces(tmp_path: Path) -> None:
    for step in (3, 4):
        write_checkpoint(tmp_path / "step_3", VALUES | {"step": step})
    assert read_checkpoint(tmp_path / "step_3")["step"] == 4


def cut_one_byte(path: Path) -> None:
    data = (path / STATE).read_bytes()
    (path / STATE).write_bytes(data[:-1])


def flip_one_bit(path: Path) -> None:
    data = bytearray((path / STATE).read_bytes())
    data[len(data) // 2] ^= 1
    (path / STATE).write_bytes(bytes(data))


def wrong_hash(path: Path) -> None:
    manifest = read_json(path / MANIFEST)
    manifest[STATE]["sha256"] = "0" * 64
    write_json(path / MANIFEST, manifest)


def no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def torn_manifest(path: Path) -> None:
    (path / MANIFEST).write_text('{"state.pt": {"si')


def other_manifest(path: Path) -> None:
    write_json(path / MANIFEST, {})


def no_state(path: Path) -> None:
    (path / STATE).unlink()


@pytest.mark.parametrize(
    "damage", [cut_one_byte, flip_one_bit, wrong_hash, no_manifest, torn_manifest, other_manifest, no_state]
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "step_3"
    write_checkpoint(path, VALUES)
    damage(path)
    with pytest.raises(DataError, match="step_3"):
        read_checkpoint(path)


def test_no_checkpoint_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no complete checkpoint"):
        read_checkpoint(tmp_path / "step_9")


def test_a_write_that_fails_leaves_the_old_one_and_no_new_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step_3", VALUES)
    for step in (3, 4):
        with disk_of(2000), pytest.raises((OSError, RuntimeError)):
            write_checkpoint(tmp_path / f"step_{step}", VALUES)
    assert names(tmp_path) == ["step_3"]
    assert read_checkpoint(tmp_path / "step_3")["step"] == 3


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    class Interrupts:
        def __reduce__(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "step_3", {"weights": torch.zeros(9), "last": Interrupts()})
    assert names(tmp_path) == []


def test_a_folder_left_by_a_kill_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".step_3.tmp").mkdir()
    (tmp_path / ".step_3.tmp" / STATE).write_text("half of")
    write_checkpoint(tmp_path / "step_3", VALUES)
    assert names(tmp_path) == ["step_3"]


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
