"""Parameters that a window gave no gradient: named when it happens, so that dead weights do not hide."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

logger = logging.getLogger("drumline")


class Unused:
    """Keeps count of parameters without gradient; rank 0 warns of each the first time."""

    def __init__(self, rank: int, noun: str = "rank") -> None:
        """noun: what each of those that share a window is called."""
        self._rank = rank
        self._noun = noun
        self._windows: Counter[str] = Counter()

    def heed(self, notes: Sequence[Mapping[str, Sequence[str]]], update: int) -> list[str]:
        """Take in every rank's notes of one window; returns the names that no rank used.

        A rank that only takes part, on another's rows, has no say.
        """
        num_working = sum("idle" not in note for note in notes)
        by_name: dict[str, list[int]] = {}
        for rank, note in enumerate(notes):
            for name in note.get("unused", ()):
                by_name.setdefault(name, []).append(rank)
        new = {name: ranks for name, ranks in by_name.items() if name not in self._windows}
        self._windows.update(by_name)
        if new and self._rank == 0:
            listed = ", ".join(
                f"{name} ({describe(ranks, num_working, len(notes), self._noun)})" for name, ranks in new.items()
            )
            logger.warning("no gradient in update %d for: %s; freeze what is not to be trained", update, listed)
        return [name for name, ranks in by_name.items() if len(ranks) == num_working]

    def summarise(self, num_windows: int) -> None:
        """Say how often parameters went unused."""
        if self._windows and self._rank == 0:
            counts = ", ".join(f"{name} in {n} of {num_windows}" for name, n in self._windows.items())
            logger.info("updates without gradient: %s", counts)


def describe(ranks: Sequence[int], num_working: int, world_size: int, noun: str = "rank") -> str:
    """Say on which ranks; a lone process has none to tell apart."""
    if world_size == 1:
        return "not used"
    return f"on all {noun}s" if len(ranks) == num_working else f"on {noun} {', '.join(map(str, ranks))} only"


def parameters_of_graph(target: Tensor) -> set[int]:
    """Ids of the parameters that a backward pass from this tensor reaches."""
    used: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [target.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            used.add(id(node.variable))
        waiting.extend(following for following, _ in node.next_functions)
    return used
