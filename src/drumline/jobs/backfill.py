"""How many free devices the first job that has to wait can spare, whatever ends next. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def spare(needed: int, free: int, held: Iterable[int]) -> int:
    """How many of the `free` devices others may have without the job that needs `needed` starting any later for it.

    `held`: by running job, how many devices it would give back. When a job ends is not known, so the answer holds for
    every order of endings: the job starts once what came free reaches `needed - free`; the smallest sum of some of
    `held` that reaches this leaves that much over, and every other that reaches it at least as much.
    """
    missing = needed - free
    if missing <= 0:
        return -missing
    # Bit n is set where some of the jobs hold n devices together.
    sums = 1
    for size in held:
        sums |= sums << size
    reaching = sums >> missing
    if not reaching:
        return 0
    over = (reaching & -reaching).bit_length() - 1
    return min(free, over)
