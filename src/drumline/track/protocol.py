"""What every destination of metrics does."""

from __future__ import annotations

from typing import Any, Protocol

from drumline.plan.record import Plan

RECORD_KEYS = frozenset(
    {"time", "kind", "step", "epoch", "elapsed_s", "loss", "aux_loss", "lr", "grad_norm", "skipped", "count"}
    | {"samples_per_s", "units_per_s", "unit", "mfu", "memory_bytes", "loader_wait_s"}
)
"""What log lines and evaluations call their own values; no metric of a user's may have such a name."""


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
