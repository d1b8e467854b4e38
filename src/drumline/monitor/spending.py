"""What a run has taken of energy, time and money, over all of its attempts, a file a machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from drumline.config.monitor import MonitorConfig
from drumline.monitor.energy import cost
from drumline.rundir import RunDir, read_json, write_json


@dataclass(frozen=True)
class Spending:
    """Energy of GPUs in joules, GPU seconds, and their price in the currency of the settings."""

    energy_j: float = 0.0
    gpu_s: float = 0.0
    cost: float = 0.0

    def plus(self, energy_j: float, gpu_s: float, prices: MonitorConfig) -> Spending:
        """With more energy and time, at these prices."""
        price = cost(energy_j, gpu_s / 3600, prices)
        return Spending(self.energy_j + energy_j, self.gpu_s + gpu_s, self.cost + price)


def spending_file(run: RunDir, node: str) -> Path:
    """Where a machine keeps its part, which no resume takes back: what was trained in vain was paid for too."""
    return run.logs / f"spent_{node}.json"


def read_spending(path: Path) -> Spending:
    """What a file holds; nothing where there is none, or it is none of ours."""
    try:
        return Spending(**{name: float(value) for name, value in read_json(path).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return Spending()


def write_spending(path: Path, spending: Spending) -> None:
    """Keep it, atomically."""
    write_json(path, asdict(spending))


def total_spending(run: RunDir) -> Spending:
    """Of all machines whose files are in this run directory."""
    parts = [read_spending(path) for path in run.logs.glob("spent_*.json")]
    sums = (sum(getattr(part, name) for part in parts) for name in ("energy_j", "gpu_s", "cost"))
    return Spending(*sums)
