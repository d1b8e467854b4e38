"""Going on in an existing run directory: agreed by all ranks, from the newest checkpoint that all of them can load."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.config.changes import Change, with_global_batch
from drumline.config.kept import Kept, global_batch_of, is_there, read_kept
from drumline.config.schema import RunConfig
from drumline.engine.checkpoint import load_checkpoint
from drumline.engine.run import Run
from drumline.errors import ConfigError, DataError, DrumlineError, RunDirExists
from drumline.manifest import Manifest, check, checkpoints_of, out_of_reach, read_manifest
from drumline.parallel.groups import Groups
from drumline.rundir import ENDING_S, RESTART_REQUEST, STOP_REQUEST, Lock, RunDir, keep_lines

logger = logging.getLogger("drumline")


@dataclass
class Place:
    """Where a run will be kept, as all ranks know it before anything is written."""

    path: Path
    config: RunConfig
    """As it was asked for."""
    kept: Kept | None
    """What an earlier attempt left there; None: nothing is there yet."""
    lock: Lock | None = None
    """Rank 0's."""

    def release(self) -> None:
        """Let others have the directory."""
        if self.lock is not None:
            self.lock.release()


def look(groups: Groups, config: RunConfig, prepared: RunDir | None, default_name: str) -> Place:
    """Let rank 0 look at the place that the config names, and take it where a run is there.

    prepared: a directory that the command has looked at and written to. Raises what rank 0 comes to on all ranks.
    """
    path = prepared.path if prepared is not None else config.run_dir or Path("runs") / (config.name or default_name)
    lock, answer = None, dict[str, Any]()
    if groups.world.rank == 0:
        try:
            there, kept = prepared is not None or is_there(path, config), None
            if there:
                lock = Lock(RunDir(path), "run", ENDING_S)
                # The command has compared configs; here it would meet what the data has added to its own.
                kept = Kept((), global_batch_of(prepared)) if prepared is not None else read_kept(RunDir(path), config)
            if there and prepared is None:
                # It was meant for an attempt that has ended; under our launcher it may be meant for all of them.
                (RunDir(path).requests / STOP_REQUEST).unlink(missing_ok=True)
            answer = {"path": str(path), "kept": kept}
        except DrumlineError as error:
            answer = {"problem": error.problem, "fix": error.fix, "config": isinstance(error, ConfigError)}
        except OSError as error:
            answer = {"problem": f"the run directory {path} cannot be used: {error}", "fix": "choose another run_dir"}
        if "problem" in answer and lock is not None:
            lock.release()
    (answer, *_) = groups.side.exchange("run directory", answer)
    if "problem" in answer:
        kind = ConfigError if answer.get("config") else RunDirExists
        raise kind(answer["problem"], answer["fix"])
    found = answer["kept"]
    if found is not None:
        if groups.world.local_rank == 0:
            # Nobody of this attempt has asked yet. On each machine, whose folder may be its own.
            (RunDir(Path(answer["path"])).requests / RESTART_REQUEST).unlink(missing_ok=True)
        changes, *others = found
        found = Kept(tuple(Change(*each) for each in changes), *others)
    return Place(Path(answer["path"]), config, found, lock)


def bound_config(config: RunConfig, place: Place) -> RunConfig:
    """The config with what an earlier attempt has fixed: a global batch that was stated for each GPU."""
    return config if place.kept is None else with_global_batch(config, place.kept.global_batch)


def make_directory(groups: Groups, place: Place) -> RunDir:
    """Make the run directory where nothing is yet, on each machine that does not see rank 0's."""
    problem = None
    if groups.world.rank == 0 and place.kept is None:
        try:
            place.lock = Lock(RunDir.create(place.path), "run")
        except DrumlineError as error:
            problem = (error.problem, error.fix)
        except OSError as error:
            problem = (f"the run directory {place.path} cannot be made: {error}", "choose another run_dir")
    (problem, *_) = groups.side.exchange("new run directory", problem)
    if problem is not None:
        raise RunDirExists(*problem)
    directory = RunDir(place.path)
    if groups.world.local_rank == 0:
        directory.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


def resume(run: Run, kept: Kept) -> int | None:
    """Go on from the newest checkpoint that all ranks can load; returns its step, or None where there is none yet.

    All ranks call it. Lines of metrics.jsonl from after that step are dropped, since they will be written again. Raises
    DataError where there are checkpoints, and none of them can be used: the run would begin anew over them.
    """
    rows = run.progress.rows
    step, skipped = agree_on_checkpoint(run)
    if run.is_rank_zero:
        for name, problem in skipped.items():
            logger.warning("the checkpoint %s is passed over: %s", name, problem)
    if step is None:
        if skipped:
            raise DataError(
                f"none of the checkpoints in {run.directory.checkpoints} can be used: "
                + "; ".join(f"{Path(name).name}: {problem}" for name, problem in skipped.items()),
                "mend them; or remove them, to begin anew, or give the run another name (--set name=...)",
            )
        if kept.finished is not None:
            raise RunDirExists(
                f"the run in {run.directory.path} is finished and left no checkpoint with its weights",
                "give the run another name (--set name=...)",
            )
        if run.is_rank_zero:
            trim_metrics(run)
        return None
    path = run.directory.checkpoint_of(step)
    load_checkpoint(run, path, checked=True)
    check_rows(run, rows, path)
    run.saved_at = run.progress.position
    has_all = kept.finished is not None and run.progress.step == kept.steps
    if has_all and kept.finished != "done":  # then it ends by itself, or one call of steps() was done, not the run
        run.finished = kept.finished
    manifest = read_manifest(path)
    take_back_meters(run)
    if run.is_rank_zero:
        trim_metrics(run)
        tell(run, manifest, skipped)
        if has_all:
            logger.warning("%s", kept.describe(run.directory.path))
        elif kept.newest is not None:  # else the command has said so
            logger.warning("going on in %s after update %d", run.directory.path, step)
    return step


def agree_on_checkpoint(run: Run) -> tuple[int | None, dict[str, str]]:
    """The newest step whose checkpoint every rank can load, and by path what is wrong with those that were passed over.

    One rank a machine reads and checks, newest first; each comes down to what the others have, until all name the same.
    """
    groups = run.groups
    groups.side.exchange("resume")  # what rank 0 has swept together is seen by all from here on
    candidates = usable(run, reads=groups.world.local_rank == 0)
    step, skipped = next(candidates)
    while True:
        answers = groups.side.exchange("newest checkpoint", [step, skipped])
        steps = [answer[0] for answer in answers]
        if None in steps or len(set(steps)) == 1:
            return (None if None in steps else step), {k: v for answer in answers for k, v in answer[1].items()}
        least = min(steps)
        while step is not None and step > least:
            step, skipped = next(candidates)


def usable(run: Run, *, reads: bool) -> Iterator[tuple[int | None, dict[str, str]]]:
    """Steps that this rank could load, newest first and then None without end; each with all that was passed over.

    reads: whether this rank compares checksums too; another one on its machine does, where it need not.
    """
    world, skipped = run.groups.world, dict[str, str]()
    for listed in checkpoints_of(run.directory):
        problems = check(listed.path, contents=reads)
        if not problems and (reason := out_of_reach(listed.path, world.rank, world.size)):
            problems = [reason]
        if problems:
            skipped = {**skipped, str(listed.path): "; ".join(problems)}
        else:
            yield listed.step, skipped
    while True:
        yield None, skipped


def check_rows(run: Run, rows: int | None, path: Path) -> None:
    """Raise DataError where the training data is not as long as it was: every epoch's order would be another one."""
    before = run.progress.rows
    if before is not None and rows is not None and before != rows:
        raise DataError(
            f"an epoch has {rows} rows of training data, and had {before} when {path} was saved",
            "bring the data back as it was, or begin a new run from these weights (checkpoint.initial)",
        )
    run.progress.rows = rows


def take_back_meters(run: Run) -> None:
    """Give each rank its part of the log interval's sums back; of another number of ranks rank 0 takes all."""
    world, parts = run.groups.world, run.progress.meters
    run.progress.meters = {}
    run.meter.take()
    for name, flat in parts.items():
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        if len(pairs) == world.size:
            run.meter.put_back(name, *pairs[world.rank])
        elif world.rank == 0:
            run.meter.put_back(name, sum(value for value, _ in pairs), sum(weight for _, weight in pairs))


def trim_metrics(run: Run) -> None:
    """Drop what metrics.jsonl holds from after where the run stands, and what a kill has torn; its time goes on."""
    step, seen, elapsed_s = run.progress.step, 0, 0.0
    evaluations = sum(entry["step"] == step for entry in run.progress.history)

    def keep(record: Mapping[str, Any]) -> bool:
        nonlocal seen, elapsed_s
        if record["step"] != step or record["kind"] != "eval":
            kept = bool(record["step"] <= step)
        else:
            seen += 1  # one from after the checkpoint, with all updates in between skipped, will be made again
            kept = seen <= evaluations
        if kept:
            elapsed_s = record.get("elapsed_s", elapsed_s)
        return kept

    dropped = keep_lines(run.directory.metrics, keep)
    run.began -= elapsed_s
    if dropped:
        logger.info("%d lines of metrics.jsonl from after update %d are dropped", dropped, step)


def tell(run: Run, manifest: Manifest, skipped: Mapping[str, str]) -> None:
    """Say from where the run goes on, and what is not as it was; rank 0 calls it."""
    progress, now = run.progress, run.groups.world.size
    logger.info("going on after update %d (epoch %d, window %d)", progress.step, progress.epoch, progress.window)
    message = None
    if manifest.world_size != now:
        message = f"{manifest.world_size} processes have become {now}"
        stream = progress.rows is None and progress.window > 0
        kept = "global batch, rates and the order of samples are as before" if not stream else stream_notice(now)
        logger.warning("%s: %s; each process draws from a random stream of its own place", message, kept)
    run.event(
        "resume",
        step=progress.step,
        epoch=progress.epoch,
        window=progress.window,
        world_size=now,
        world_size_before=manifest.world_size,
        skipped=[{"path": path, "problem": problem} for path, problem in skipped.items()],
    )


def stream_notice(world_size: int) -> str:
    """What another world means in the middle of a stream's epoch."""
    return (
        f"global batch and rates are as before, but a stream is now cut into {world_size} parts, so that rows of this "
        "epoch may repeat or be left out"
    )


def tell_changes(run: Run, changes: Sequence[Change]) -> None:
    """Say which settings are not what they were; rank 0 calls it."""
    if not changes:
        return
    for change in changes:
        log = logger.warning if change.alters else logger.info
        log("changed since the run was kept: %s", change)
    run.event("changed", settings={change.name: [change.old, change.new] for change in changes})
