"""What ranks tell each other when they meet after a failure, and what all of them conclude from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from drumline.parallel.strategy import Outcome


class Report(NamedTuple):
    """What one rank tells the others when they meet."""

    steps: int
    """Optimizer steps that it has made whole."""
    torn: bool
    """Whether one is half made, so that its weights are no rank's."""
    reason: Mapping[str, Any] | None = None
    """Why it asked, if it did."""
    outcomes: Mapping[str, Sequence[float]] = {}
    """Norm, whether applied, and rate of its newest steps, by their number."""


class Verdict(NamedTuple):
    """What all ranks conclude from the reports."""

    steps: int
    """Steps that count."""
    giver: int
    """The rank that the others take them from."""
    takers: list[int]
    """Those that do."""


def judge(reports: Sequence[Report]) -> Verdict | None:
    """Which steps count, and who takes whose weights; None where no rank has whole ones."""
    whole = [rank for rank, report in enumerate(reports) if not report.torn]
    if not whole:
        return None
    steps = max(reports[rank].steps for rank in whole)
    giver = next(rank for rank in whole if reports[rank].steps == steps)
    takers = [rank for rank, report in enumerate(reports) if report.torn or report.steps != steps]
    return Verdict(steps, giver, takers)


def numbers(outcomes: Mapping[int, Outcome]) -> dict[str, list[float]]:
    """The outcomes as they travel."""
    return {str(n): [float(o.norm), float(o.applied), float(o.lr)] for n, o in outcomes.items()}


def outcome_of(values: Sequence[float]) -> Outcome:
    """Back from numbers."""
    norm, applied, lr = values
    return Outcome(torch.tensor(norm, dtype=torch.float64), torch.tensor(applied), lr)


def on_device(outcome: Outcome, device: torch.device) -> Outcome:
    """Its tensors where the run trains."""
    return outcome._replace(norm=outcome.norm.to(device), applied=outcome.applied.to(device))
