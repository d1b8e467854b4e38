"""What every destination of metrics does, and the names of what a record holds."""

from __future__ import annotations

from typing import Any, Protocol

from drumline.plan.record import Plan

MEMORY_KEYS = ("memory_peak_bytes", "memory_allocated_bytes", "memory_reserved_bytes", "memory_resident_bytes")
"""Lists by rank: the first three of a GPU, the last one of a process on CPU."""

RECORD_KEYS = frozenset(
    {"time", "kind", "step", "epoch", "elapsed_s", "loss", "aux_loss", "lr", "grad_norm", "skipped", "count"}
    | {"samples_per_s", "units_per_s", "unit", "mfu", "loader_wait_s", "gradient_noise_scale", *MEMORY_KEYS}
)
"""What log lines and evaluations call their own values; no metric of a user's may have such a name."""


class Tracker(Protocol):
    """Takes a run's records on rank 0. Called from one thread; `close` comes last, also after a failure.

    A tracker that raises is warned of, closed and left out, and the run goes on. One that blocks holds up the run: what
    may take long, such as a request over the network, belongs in a thread and a bounded queue of the tracker's own.
    """

    def start(self, plan: Plan, total_steps: int | None) -> None:
        """Learn what run this is; total_steps counts updates, None where the length is not known."""
        ...

    def log(self, record: dict[str, Any]) -> None:
        """Take one train or eval record in the shape of metrics.jsonl: numbers, texts, None, and lists by rank."""
        ...

    def close(self) -> None:
        """Give everything back; closing twice is allowed."""
        ...
