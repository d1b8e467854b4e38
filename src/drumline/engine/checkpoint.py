"""Checkpoints of a run: saved by all ranks together, complete or absent, loaded on any number of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import DistError

from drumline.config.schema import CheckpointConfig
from drumline.engine.checkpoint_folder import file_systems, new_token, sweep
from drumline.engine.checkpoint_host import HostCopies
from drumline.engine.checkpoint_write import STATE as STATE
from drumline.engine.checkpoint_write import Save, Site, note, reason_of
from drumline.engine.meter import by_rank
from drumline.errors import DataError
from drumline.manifest import Format, Manifest, check, out_of_reach, read_manifest
from drumline.parallel.parts import InParts
from drumline.parallel.saved_names import base_problem, kept_of
from drumline.parallel.side_channel import Alone
from drumline.rundir import RunDir

if TYPE_CHECKING:
    from drumline.engine.run import Run
    from drumline.parallel.groups import Groups

logger = logging.getLogger("drumline")

LOOK_S = 0.25
"""Between two looks for a failure while a write is waited for."""
ROUND_S = 30.0
"""Longest wait for a write before the ranks tell each other that it goes on."""
GRACE_S = 5.0
"""How long a write may go on after the run has failed: what was in memory then is worth more than what is on disk."""


class Checkpointer:
    """Saves a run's state, as `checkpoint` of its config says; one save is under way at a time."""

    def __init__(self, config: CheckpointConfig, groups: Groups, directory: RunDir, kind: str) -> None:
        """All ranks make it together, and what earlier attempts left unfinished is removed. kind: of parallelism."""
        self._config = config
        self._groups = groups
        self._directory = RunDir(directory.path.absolute())
        self._kind = kind
        self._format: Format = config.format if config.format != "auto" else "sharded" if kind == "fsdp" else "whole"
        if self._format == "sharded":
            groups.open_writers()
        nodes = file_systems(groups, self._directory.path)
        # Where rank 0 has everything to write it depends on nobody: not even the end of another rank holds it up.
        alone = self._format == "whole" and len(set(nodes)) == 1
        self._site = Site(groups.world.rank, nodes, Alone() if alone else groups.writer, groups.writers)
        self._takes_part = not alone or self._site.commits
        if self._site.commits:
            for name in sweep(self._directory.checkpoints):
                logger.info("removed %s, which an earlier attempt had left", name)
        self._copies = HostCopies()
        self._save: Save | None = None
        """The newest one, until all ranks know what became of it."""
        self._thread: threading.Thread | None = None
        self._known: str | None = None
        """The save that has come to its end on all ranks."""
        self._last: float | None = None
        """When the newest save began, by the run's clock."""

    def save(self, run: Run, *, wait: bool = False) -> Path:
        """Save weights, their average, each learner's state and the position; all ranks call it between two updates.

        wait: return when it is in its place, and raise DataError on all ranks where it could not be written. Otherwise
        it may be on its way still, and a failure is a warning: training goes on.
        """
        with run.phase("checkpoint"):
            return self._begin(run, wait=wait)

    def _begin(self, run: Run, *, wait: bool) -> Path:
        self.finish(run)
        run.learn(keep=0)
        self._last = run.clock()
        inline = wait or not self._config.asynchronous
        state, problem = self._state(run, copied=not inline or run.groups.device.type == "cuda")
        mine = {"token": new_token(), "problem": problem, "sums": run.meter.read()}
        answers = run.groups.side.exchange("checkpoint", mine)
        if state is not None:
            state["progress"]["meters"] = by_rank([answer["sums"] for answer in answers])
        self._save = save = self._make_save(run, answers[0]["token"], state)
        save.problem = next((answer["problem"] for answer in answers if answer["problem"] is not None), None)
        run.saved_at = run.progress.position
        if save.problem is None and self._takes_part:
            self._thread = threading.Thread(target=save.write, name="drumline-checkpoint", daemon=True)
            self._thread.start()
        if inline or save.problem is not None:
            self._settle(run, save, raises=wait)
        return save.path

    def _state(self, run: Run, *, copied: bool) -> tuple[Any, str | None]:
        """What this rank has to write, and why it could not be copied; all ranks call it."""
        strategy, commits = run.strategy, self._site.commits
        if not isinstance(strategy, InParts):
            state = strategy.state()
        elif self._format == "sharded":
            state = strategy.parts()
        else:
            state = strategy.state(keep=commits)
        if self._format == "whole" and not commits:
            return None, None
        both = {"progress": run.progress.to_state(), "strategy": state}
        if (kept := kept_of(run.model)) is not None:
            both["base"] = dict(kept.base)
        if not copied:
            return both, None
        try:
            return self._copies.copy(both), None
        except (RuntimeError, MemoryError) as error:
            return None, f"there is no room for a copy of the state in the host's memory: {reason_of(error)}"

    def _make_save(self, run: Run, token: str, state: Any) -> Save:
        progress = run.progress
        found = progress.history[-1] if progress.history else {}
        metrics = {name: value for name, value in found.items() if name != "step"}
        manifest = Manifest(
            step=progress.step,
            files=(),
            world_size=run.groups.world.size,
            kind=self._kind,
            format=self._format,
            metrics=metrics if found.get("step") == progress.step else {},
            created=round(time.time(), 3),
        )
        return Save(self._site, self._directory, self._config, token, manifest, state)

    def overdue(self, now: float) -> bool:
        """Whether rank 0 asks for a save because `every_s` seconds have gone by; now: by the run's clock."""
        if self._config.every_s is None or self._site.rank != 0:
            return False
        if self._last is None:
            self._last = now
        return now - self._last >= self._config.every_s

    @property
    def written(self) -> str | None:
        """The newest save of which all ranks must still learn what became of it, where this rank has done its part."""
        if self._save is None or (self._thread is not None and self._thread.is_alive()):
            return None
        return self._save.token

    def heed(self, answers: Sequence[str | None]) -> None:
        """Take in what `written` is on each rank, all at one moment."""
        self._known = answers[0] if len(set(answers)) == 1 else None

    def catch_up(self, run: Run) -> None:
        """Tell of a save that is known to have come to its end, without waiting for any; all ranks call it."""
        if self._save is not None and self._save.token == self._known:
            self._settle(run, self._save, raises=False)

    def finish(self, run: Run) -> None:
        """Wait for what is being written; all ranks call it. A failure is a warning; then `run.saved_at` is None."""
        if self._save is not None:
            self._settle(run, self._save, raises=False)

    def _settle(self, run: Run, save: Save, *, raises: bool) -> None:
        """Learn on all ranks what became of a save, however long it takes."""
        round_s = min(ROUND_S, run.groups.timeout_s / 4)  # so that nobody's wait for another rank nears its limit
        while True:
            if self._thread is not None:
                with run.pulse.busy("writing a checkpoint"):
                    self._thread.join(round_s)
            answers = run.groups.side.exchange("saved", [self.written is not None, save.problem])
            if all(done for done, _ in answers):
                break
        self._thread = self._save = None
        problem = next((problem for _, problem in answers if problem is not None), None)
        if problem is None:
            run.callbacks.tell("on_save", save.path)
            return
        run.saved_at = None
        if run.is_rank_zero:
            note(self._directory, "checkpoint_failed", step=save.manifest.step, message=problem)
        what = f"the checkpoint {save.path} could not be written: {problem}"
        if raises:
            raise DataError(what, "free space, or choose another run_dir")
        if run.is_rank_zero:
            logger.warning("%s; training goes on", what)

    def close(self) -> None:
        """End what is being written: well, or after a failure of the run within seconds. Closing twice is allowed."""
        thread, save = self._thread, self._save
        self._thread = self._save = None
        self._copies = HostCopies()
        if thread is None or save is None:
            return
        failed_since = None
        while thread.is_alive():
            thread.join(LOOK_S)
            if failed_since is None and self._has_failed():
                failed_since = time.monotonic()
            elif failed_since is not None and time.monotonic() - failed_since > GRACE_S:
                with suppress(DistError):
                    self._groups.writer.report_failure("the run has failed")
                thread.join(2 * LOOK_S)
                break
        if save.problem is not None:
            logger.warning("the checkpoint %s could not be written: %s", save.path, save.problem)

    def _has_failed(self) -> bool:
        try:
            return self._groups.side.failure() is not None
        except DistError:  # the store is gone with rank 0
            return True


def read_checkpoint(path: Path, *, contents: bool = True) -> dict[str, Any]:
    """Read a checkpoint of either form, whole and on the CPU, after checking it against its manifest.

    contents: compare checksums too. Raises DataError for one that is not complete.
    """
    problems = check(path, contents=contents)
    if not problems and (reason := out_of_reach(path, 0, 1)):
        problems = [reason]
    return _read(path, problems, lambda state: state)


def _read(path: Path, problems: Sequence[str], room_for: Callable[[Any], Any]) -> dict[str, Any]:
    manifest = read_manifest(path)
    if problems:
        raise DataError(f"{path} cannot be used: {'; '.join(problems)}", "name another step_<n> directory")
    state: dict[str, Any] = torch.load(path / STATE, map_location="cpu", weights_only=True)
    if manifest.format == "sharded":
        from drumline.engine.checkpoint_shards import read_parts

        state = read_parts(path, state, lambda found: {**found, "strategy": room_for(found["strategy"])})
    return state


def load_checkpoint(run: Run, path: Path, *, checked: bool = False) -> None:
    """Go on from a checkpoint: weights, optimizer, rates and position as they were; all ranks call it.

    Of a sharded one each rank reads its own part only, where this run is sharded too. checked: its files have just been
    compared with their checksums. Raises DataError on all ranks where one of them cannot read it, and where it is not
    of this model and optimizer.
    """
    world, state, problem = run.groups.world, {}, None
    strategy = run.strategy
    try:
        # The ranks of a machine share the reading that checksums take.
        problems = check(path, contents=not checked, share=(world.local_rank, world.local_size))
        if not problems and (reason := out_of_reach(path, world.rank, world.size)):
            problems = [reason]
        state = _read(path, problems, strategy.room if isinstance(strategy, InParts) else lambda found: found)
        if (misfit := base_problem(run.model, state.get("base"), state["strategy"]["model"])) is not None:
            raise DataError(f"the checkpoint {path} does not fit: {misfit[0]}", misfit[1])
    except DataError as error:
        problem = (error.problem, error.fix)
    found = next((answer for answer in run.groups.side.exchange("load", problem) if answer is not None), None)
    if found is not None:
        raise DataError(*found)
    try:
        strategy.load(state["strategy"])
    except (RuntimeError, ValueError) as error:
        raise DataError(
            f"the checkpoint {path} does not fit: {error}", "build the model and optimizer that it was saved from"
        ) from error
    run.progress = type(run.progress).from_state(state["progress"])
    run.saved_at = None
