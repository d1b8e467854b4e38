"""An existing run directory, as the command and the trainer meet it: gone on with, finished, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from drumline.config.changes import Change, compare, refusal, wants_more, with_global_batch
from drumline.config.load import load_config
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError, DataError, RunDirExists
from drumline.manifest import best_first, check, checkpoints_of, chosen
from drumline.rundir import RunDir, read_json

CLOSED = "closed"
"""Reason in exit.json of a run that was left before its end."""

Asked = int | Literal["best"] | None
"""Which checkpoint of a run: after this update, of the best evaluation, or the newest valid one."""

_ANOTHER_NAME = "give the run another name (--set name=...)"


class Kept(NamedTuple):
    """What an earlier attempt left, as far as the next one is bound by it."""

    changes: tuple[Change, ...] = ()
    """Settings that are not what they were, and may change."""
    global_batch: int | None = None
    """Samples an update, where there are checkpoints, whose place in the data counts in them."""
    finished: str | None = None
    """Why the run ended; None where it is to go on."""
    steps: int = 0
    """Updates of a finished run."""
    newest: int | None = None
    """The update of the newest checkpoint, which may turn out to be damaged; None where there is none."""

    def describe(self, path: Path) -> str:
        """Say of a finished run what it came to, and how it would go on."""
        return (
            f"the run in {path} is finished ({self.finished}, {self.steps} updates): nothing is left to train; raise "
            "train.max_steps or train.epochs for more"
        )


def is_there(path: Path, config: RunConfig) -> bool:
    """Whether a run of ours lies at this path, which may be gone on with; False where nothing lies there.

    Raises RunDirExists for anything else, and for a run where checkpoint.resume is false. Nothing is written.
    """
    if not path.exists():
        return False
    if problem := _stranger(path):
        raise RunDirExists(
            f"the run directory {path} exists already, and holds no run: {problem}",
            f"{_ANOTHER_NAME}, or remove the directory if you no longer need it",
        )
    if not config.checkpoint.resume:
        raise RunDirExists(
            f"the run directory {path} exists already, and checkpoint.resume is false",
            f"{_ANOTHER_NAME}, remove the directory if you no longer need it, or go on with it: checkpoint.resume=true",
        )
    return True


def _stranger(path: Path) -> str | None:
    """Why what lies at this path is no run of ours; None: it is one."""
    config = RunDir(path).config
    if not config.exists():
        return None if _barely_begun(path) else "it has no config.yaml"
    try:
        load_config(config)
    except ConfigError as error:
        return f"its config.yaml is none that can be read here ({error.problem.splitlines()[0]})"
    return None


def _barely_begun(path: Path) -> bool:
    """Whether a run was killed between making its directory and writing config.yaml."""
    logs = RunDir(path).logs
    return (
        path.is_dir()
        and logs.is_dir()
        and all(each == logs or each.name.startswith(".config.yaml.") for each in path.iterdir())
        and all(each.suffix == ".lock" for each in logs.iterdir())
    )


def read_kept(run: RunDir, config: RunConfig) -> Kept:
    """What the run that lies there comes to under this config.

    A run without a checkpoint begins anew, so that everything may change. Raises ConfigError that shows what differs
    and may not, and RunDirExists for a finished run that is asked for more and has no checkpoint to go on from.
    """
    saved = checkpoints_of(run)
    if not run.config.exists():
        return Kept()
    old, batch = load_config(run.config), global_batch_of(run)
    # Where one of them states the batch for each GPU and the other one the whole, they may well say the same.
    whole_before, whole_now = (each.train.global_batch is not None for each in (old, config))
    changes = compare(
        with_global_batch(old, batch) if whole_now else old,
        with_global_batch(config, batch) if whole_before else config,
    )
    if saved and changes.refused:
        raise refusal(changes, str(run.path))
    found = Kept((*changes.allowed, *changes.refused), batch, newest=saved[0].step if saved else None)
    end = read_json(run.exit) if run.exit.exists() else {}
    if end.get("exit_status") != 0 or end.get("reason") == CLOSED:
        return found
    if not wants_more(old, config, end["reason"]):
        return found._replace(finished=end["reason"], steps=end["steps"])
    if not saved:
        raise RunDirExists(
            f"the run in {run.path} is finished and left no checkpoint, so it cannot go on", _ANOTHER_NAME
        )
    return found


def checkpoint_of(run: RunDir, step: Asked) -> tuple[Path, list[str]]:
    """The checkpoint that `manifest.chosen` gives; best: the valid one with the best evaluation by checkpoint.metric.

    With what is wrong with those that are passed over, a line each. Raises DataError where there is none.
    """
    if step != "best":
        return chosen(run, step)
    wanted = load_config(run.config).checkpoint
    skipped: list[str] = []
    for found in best_first({each.step: each.metrics.get(wanted.metric) for each in checkpoints_of(run)}, wanted.mode):
        path = run.checkpoint_of(found)
        if not (problems := check(path)):
            return path, skipped
        skipped.append(f"{path.name}: {'; '.join(problems)}")
    told = f" ({'; '.join(skipped)})" if skipped else ""
    raise DataError(
        f"the run in {run.path} has no valid checkpoint of an update at which {wanted.metric} was evaluated{told}",
        f"take the newest, or one of: drumline checkpoints {run.path}; runs keep the best with checkpoint.keep_best=1",
    )


def global_batch_of(run: RunDir) -> int | None:
    """Samples an update that the place of a run's checkpoints in the data counts in; None where there are none."""
    if not (run.plan.exists() and checkpoints_of(run)):
        return None
    return int(read_json(run.plan)["global_batch"])
