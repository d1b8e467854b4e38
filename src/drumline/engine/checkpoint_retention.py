"""Which checkpoints go, as a pure decision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal


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
    known = [(value, step) for step, value in listed.items() if value is not None and not math.isnan(value)]
    sign = 1 if mode == "min" else -1
    best = sorted(known, key=lambda found: (sign * found[0], -found[1]))[:keep_best]
    kept = {*steps[: max(keep, 1)], *(step for _, step in best)}
    return [step for step in steps if step not in kept]
