"""An existing run directory: what may be gone on with, what is finished, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline.config.kept import Kept, checkpoint_of, is_there, read_kept
from drumline.config.load import config_from_mapping, dump_config
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError, DataError, RunDirExists
from drumline.manifest import MANIFEST, Entry, Manifest, digest
from drumline.rundir import Lock, RunDir, write_atomic, write_json


def config(**sections: Any) -> RunConfig:
    train = {"global_batch": 8, "max_steps": 10, **sections.pop("train", {})}
    return config_from_mapping({"train": train, **sections}, "test")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that was killed, with a checkpoint folder."""
    made = RunDir.create(tmp_path / "run")
    write_atomic(made.config, dump_config(config()))
    write_json(made.plan, {"global_batch": 8})
    made.checkpoint_of(4).mkdir(parents=True)
    return made


def end(run: RunDir, status: int, reason: str) -> None:
    write_json(run.exit, {"exit_status": status, "reason": reason, "message": "", "steps": 10})


def test_nothing_there_is_no_run(tmp_path: Path) -> None:
    assert not is_there(tmp_path / "absent", config())


def test_what_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    empty, other, file = tmp_path / "empty", tmp_path / "other", tmp_path / "file"
    empty.mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.yaml").write_text("epochs: 3\n")
    (other / "logs").mkdir(parents=True)
    (other / "logs" / "launch.json").touch()
    file.touch()
    before = sorted(tmp_path.rglob("*"))
    for path in (empty, other, file, tmp_path / "foreign"):
        with pytest.raises(RunDirExists, match="exists already, and holds no run") as caught:
            is_there(path, config())
        assert "give the run another name" in caught.value.fix
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_killed_before_it_wrote_its_config_begins_anew(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    (run.path / ".config.yaml.123.tmp").touch()
    Lock(run, "launch").release()
    assert is_there(run.path, config())
    assert read_kept(run, config(seed=9)) == Kept()


def test_a_run_is_refused_where_resuming_is_off(run: RunDir) -> None:
    assert is_there(run.path, config())
    with pytest.raises(RunDirExists, match=r"checkpoint\.resume is false"):
        is_there(run.path, config(checkpoint={"resume": False}))


def test_what_may_change_is_handed_on_and_what_may_not_is_refused(run: RunDir) -> None:
    kept = read_kept(run, config(train={"lr": 0.5}))
    assert [str(change) for change in kept.changes] == ["train.lr: 0.0003 -> 0.5"]
    assert (kept.global_batch, kept.finished) == (8, None)
    with pytest.raises(ConfigError, match=r"seed: 0 in .*run, now 3"):
        read_kept(run, config(seed=3))


def test_a_run_without_a_checkpoint_begins_anew_as_it_likes(run: RunDir) -> None:
    run.checkpoint_of(4).rmdir()
    kept = read_kept(run, config(seed=3, train={"global_batch": 16}))
    assert sorted(change.name for change in kept.changes) == ["seed", "train.global_batch"]
    assert kept.global_batch is None


def test_a_batch_is_the_same_whether_stated_for_each_gpu_or_for_all(run: RunDir) -> None:
    each = config(train={"global_batch": None, "batch_size_per_gpu": 4})
    assert [change.name for change in read_kept(run, each).changes] == ["train.micro_batch"]
    write_atomic(run.config, dump_config(each))
    assert read_kept(run, each).changes == ()
    assert [change.name for change in read_kept(run, config()).changes] == ["train.micro_batch"]
    for other in ({"global_batch": 16}, {"global_batch": None, "batch_size_per_gpu": 8}):
        with pytest.raises(ConfigError):
            read_kept(run, config(train=other))


@pytest.mark.parametrize(
    ("status", "reason", "finished"),
    [
        (0, "done", "done"),
        (0, "early_stop", "early_stop"),
        (0, "closed", None),
        (1, "failed", None),
        (3, "interrupted", None),
    ],
)
def test_only_a_run_that_came_to_its_end_is_finished(
    run: RunDir, status: int, reason: str, finished: str | None
) -> None:
    end(run, status, reason)
    assert read_kept(run, config()).finished == finished
    assert read_kept(run, config(train={"lr": 0.5, "max_steps": 9})).finished == finished
    assert read_kept(run, config(train={"max_steps": 12})).finished is None


def test_a_finished_run_says_so(run: RunDir) -> None:
    end(run, 0, "done")
    said = read_kept(run, config()).describe(run.path)
    assert said == (
        f"the run in {run.path} is finished (done, 10 updates): nothing is left to train; raise train.max_steps or "
        "train.epochs for more"
    )


def test_a_finished_run_without_a_checkpoint_cannot_do_more(run: RunDir) -> None:
    run.checkpoint_of(4).rmdir()
    end(run, 0, "done")
    assert read_kept(run, config()).finished == "done"
    with pytest.raises(RunDirExists, match="left no checkpoint"):
        read_kept(run, config(train={"max_steps": 12}))


def save(run: RunDir, step: int, metrics: dict[str, float]) -> Path:
    folder = run.checkpoint_of(step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.pt").write_bytes(b"weights")
    entry = Entry("state.pt", 0, 7, digest(folder / "state.pt"))
    write_json(folder / MANIFEST, Manifest(step, (entry,), 1, "single", "whole", metrics).to_json())
    return folder


def test_the_best_checkpoint_is_that_of_the_best_evaluation(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    write_atomic(run.config, dump_config(config()))
    found = {
        step: save(run, step, {"loss": loss, "f1": loss}) for step, loss in ((1, 0.5), (2, 0.2), (3, 0.2), (4, 0.9))
    }
    save(run, 5, {})
    save(run, 6, {"loss": float("nan")})
    assert checkpoint_of(run, "best") == (found[3], [])  # of equal ones the later
    assert checkpoint_of(run, 1) == (found[1], [])
    assert checkpoint_of(run, None) == (run.checkpoint_of(6), [])

    (found[3] / "state.pt").write_bytes(b"other")
    path, skipped = checkpoint_of(run, "best")
    assert path == found[2] and len(skipped) == 1 and skipped[0].startswith("step_3: ")

    write_atomic(run.config, dump_config(config(checkpoint={"metric": "f1", "mode": "max"})))
    assert checkpoint_of(run, "best") == (found[4], [])
    write_atomic(run.config, dump_config(config(checkpoint={"metric": "auc"})))
    with pytest.raises(DataError, match="at which auc was evaluated"):
        checkpoint_of(run, "best")
