"""What every destination of metrics does."""

from __future__ import annotations

from typing import Any, Protocol

from drumline.plan.record import Plan


class Tracker(Protocol):
    """Takes a run's records on rank 0. Called from one thread; `close` comes last, also after a failure."""

    def start(self, plan: Plan, total_steps: int | None) -> None:
        """Learn what run this is; total_steps counts updates, None where the length is not known."""
        ...

    def log(self, record: dict[str, Any]) -> None:
        """Take one train or eval record in the shape of metrics.jsonl; the record is not changed."""
        ...

    def close(self) -> None:
        """Give everything back; closing twice is allowed."""
        ...
