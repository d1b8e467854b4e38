"""What a disturbed run must have come to: the undisturbed run's state and lines, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from drumline.engine.checkpoint import read_checkpoint
from drumline.rundir import RunDir, read_lines

TIMES = frozenset({"time", "elapsed_s", "began"})


def differences(mine: RunDir, other: RunDir, steps: int) -> Iterator[str]:
    """One line for each thing in which two finished runs of so many updates differ."""
    states = [read_checkpoint(run.checkpoint_of(steps)) for run in (mine, other)]
    yield from _unlike("state", *states)
    curves = [[(line["step"], line["kind"], line["loss"]) for line in read_lines(run.metrics)] for run in (mine, other)]
    if curves[0] != curves[1]:
        yield from _unlike_curves(*curves)


def _unlike_curves(mine: list[Any], other: list[Any]) -> Iterator[str]:
    steps = [step for step, kind, _ in mine if kind == "train"]
    wanted = [step for step, kind, _ in other if kind == "train"]
    twice = sorted({step for step in steps if steps.count(step) > 1})
    if twice:
        yield f"metrics.jsonl: updates told twice: {twice[:10]}"
    if missing := sorted(set(wanted) - set(steps)):
        yield f"metrics.jsonl: updates not told: {missing[:10]}"
    other_lines = set(other)
    if unlike := [line for line in mine if line not in other_lines]:
        yield f"metrics.jsonl: {len(unlike)} lines are not the undisturbed run's, the first one {unlike[0]}"
    elif not twice and not missing:
        yield f"metrics.jsonl: {len(mine)} lines where the undisturbed run has {len(other)}"


def _unlike(place: str, mine: Any, other: Any) -> Iterator[str]:
    if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor):
        if mine.dtype != other.dtype or mine.shape != other.shape:
            yield f"{place}: {mine.dtype} {list(mine.shape)}, {other.dtype} {list(other.shape)}"
        elif not torch.equal(mine, other):
            yield f"{place}: tensors differ by up to {float((mine - other).abs().max()):g}"
    elif isinstance(mine, dict) and isinstance(other, dict):
        if mine.keys() != other.keys():
            yield f"{place}: keys {sorted(map(str, mine.keys() ^ other.keys()))} are in one only"
        for key in mine.keys() & other.keys() - TIMES:
            yield from _unlike(f"{place}.{key}", mine[key], other[key])
    elif isinstance(mine, list | tuple) and isinstance(other, list | tuple) and len(mine) == len(other):
        for index, (first, second) in enumerate(zip(mine, other, strict=True)):
            yield from _unlike(f"{place}[{index}]", first, second)
    elif mine != other:
        yield f"{place}: {mine!r}, {other!r}"
