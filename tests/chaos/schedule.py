"""Which fault comes when: pure, the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

What = Literal["launcher", "agent", "rank", "all ranks", "loader", "stop", "preempt", "full disk", "damage"]
Moment = Literal["start", "update", "save", "evaluation"]

WEIGHTS: dict[What, float] = {
    "launcher": 4,
    "rank": 8,
    "all ranks": 3,
    "loader": 2,
    "agent": 2,
    "damage": 3,
    "preempt": 1,
    "full disk": 1,
    "stop": 0.5,
}
"""How often each kind comes; a stopped process costs its run the hang limit, so it is rare."""
MOMENTS: dict[Moment, float] = {"update": 6, "save": 5, "evaluation": 3, "start": 2}
LATEST_START_S = 5.0


@dataclass(frozen=True)
class Fault:
    """One disturbance."""

    what: What
    rank: int
    """Whom it meets, where it meets one rank."""
    moment: Moment
    step: int
    """The first update after which it may come."""
    delay_s: float
    """How long after that moment."""

    def __str__(self) -> str:
        whom = f" of rank {self.rank}" if self.what in ("rank", "loader", "stop") else ""
        return f"{self.what}{whom}, {self.moment} from update {self.step}"


def draw(seed: int, num_faults: int, steps: int, ranks: int, epoch: int) -> list[Fault]:
    """Faults in the order of their updates, spread over the run; a fifth of them at epoch ends. epoch: its updates."""
    stream = random.Random(seed)
    found = []
    for at in (stream.randrange(1, steps) for _ in range(num_faults)):
        what = stream.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        moment = stream.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        if what in ("full disk", "damage", "stop", "preempt"):
            moment = "update"
        longest = LATEST_START_S if moment == "start" else 0.03
        step = at - at % epoch or 1 if moment == "update" and stream.random() < 0.4 else at
        found.append(Fault(what, stream.randrange(ranks), moment, step, stream.uniform(0, longest)))
    return sorted(found, key=lambda fault: fault.step)
