"""The same number of threads in all workers on a CPU: the last bits of a product depend on how it is shared out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from drumline.infer.records import Answer, Facts, Predictor, Prepared, Row

THREADS = "threads"


class SameThreads:
    """A predictor whose workers agree on torch's number of threads. It is set for the whole process."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner

    @property
    def columns(self) -> tuple[str, ...]:
        """The inner one's."""
        return self._inner.columns

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The inner one's."""
        return self._inner.prepare(rows)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """The inner one's, and the threads of whoever plans first."""
        return {THREADS: torch.get_num_threads(), **self._inner.survey(prepared)}

    def settle(self, facts: Facts) -> None:
        """Take that number."""
        torch.set_num_threads(int(facts[THREADS]))
        self._inner.settle(facts)

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """The inner one's."""
        return self._inner.run(rows, width)
