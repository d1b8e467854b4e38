"""Which checkpoints go, as a pure decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from drumline.manifest import best_first


def to_prune(
    listed: Mapping[int, float | None], keep: int | None, keep_best: int, mode: Literal["min", "max"]
) -> list[int]:
    """The steps to remove, of those that are there; keep None: none.

    listed: the metric of each step, None where it was not evaluated; the highest step is the one just saved, which
    stays, as do the `keep` highest and the `keep_best` best of all (of equal ones the later).
    """
    if keep is None or not listed:
        return []
    steps = sorted(listed, reverse=True)
    kept = {*steps[: max(keep, 1)], *best_first(listed, mode)[:keep_best]}
    return [step for step in steps if step not in kept]
