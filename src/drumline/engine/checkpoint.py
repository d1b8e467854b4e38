"""Whole-state checkpoints in one file, complete or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from drumline.engine.run import Progress, Run
from drumline.errors import DataError
from drumline.rundir import read_json, sync_directory, write_json

STATE = "state.pt"
MANIFEST = "manifest.json"


def save_checkpoint(run: Run) -> Path:
    """Save weights, their average, each learner's state and the position; rank 0 writes, all ranks wait for it."""
    run.learn(keep=0)
    path = run.directory.checkpoint_of(run.progress.step)
    problem = None
    state = {"progress": run.progress.to_state(), "strategy": run.strategy.state()}
    if run.is_rank_zero:
        try:
            write_checkpoint(path, state)
        except (OSError, RuntimeError) as error:
            problem = str(error.__context__ or error)  # on a full disk torch's writer hides the operating system's word
    (problem, *_) = run.groups.side.exchange("checkpoint", problem)
    if problem is not None:
        raise DataError(
            f"the checkpoint {path} could not be written: {problem}", "free space, or choose another run_dir"
        )
    run.saved_at = run.progress.position
    run.event("checkpoint", step=run.progress.step)
    run.callbacks.tell("on_save", path)
    return path


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write into a temporary directory, manifest last, then rename: a checkpoint exists whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, mode=0o700)
    try:
        file = temporary / STATE
        with file.open("wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        write_json(temporary / MANIFEST, {STATE: {"size": file.stat().st_size, "sha256": digest(file)}})
        if path.exists():
            shutil.rmtree(path)
        temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(path.parent)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint on CPU after checking it against its manifest. Raises DataError for an incomplete one."""
    file = path / STATE
    try:
        manifest = read_json(path / MANIFEST)[STATE]
        whole = file.stat().st_size == manifest["size"] and digest(file) == manifest["sha256"]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is no complete checkpoint: {error}", "name another step_<n> directory") from error
    if not whole:
        raise DataError(f"{path} is damaged: {STATE} is not what its manifest says", "name another step_<n> directory")
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return state


def load_checkpoint(run: Run, path: Path) -> None:
    """Go on from a checkpoint: weights, optimizer, rates and position as they were.

    Raises DataError on all ranks where one of them cannot read it, and where it is not of this model and optimizer.
    """
    state, problem = {}, None
    try:
        state = read_checkpoint(path)
    except DataError as error:
        problem = (error.problem, error.fix)
    found = next((answer for answer in run.groups.side.exchange("load", problem) if answer is not None), None)
    if found is not None:
        raise DataError(*found)
    try:
        run.strategy.load(state["strategy"])
    except (RuntimeError, ValueError) as error:
        raise DataError(
            f"the checkpoint {path} does not fit: {error}", "build the model and optimizer that it was saved from"
        ) from error
    run.progress = Progress.from_state(state["progress"])
    run.saved_at = None
