"""Two networks against each other: points on a ring, learned from noise. Runs on one device or on all, unchanged.

`python gan.py`, `drumline launch gan.py` or `torchrun --nproc-per-node 2 gan.py`.
"""

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

from drumline import Callback, RunConfig, StepInfo, Trainer

NOISE, CORNERS, SPREAD = 8, 8, 0.05


class Gan(nn.Module):
    """Both networks as one model, so that one checkpoint holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            *(nn.Linear(NOISE, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
        )
        self.discriminator = nn.Sequential(
            *(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
        )

    def sample(self, count: int, device: torch.device) -> torch.Tensor:
        """Generated points [count, 2]."""
        return self.generator(torch.randn(count, NOISE, device=device))


def cross_entropy(logits: torch.Tensor, label: float) -> torch.Tensor:
    """Of logits [N, 1] that should all say the same."""
    return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


def discriminator_loss(model: Gan, batch: list[torch.Tensor]) -> torch.Tensor:
    """Tell real points from generated ones."""
    (real,) = batch
    with torch.no_grad():
        fake = model.sample(len(real), real.device)
    return cross_entropy(model.discriminator(real), 1.0) + cross_entropy(model.discriminator(fake), 0.0)


def generator_loss(model: Gan, batch: list[torch.Tensor]) -> torch.Tensor:
    """Have the discriminator, as it is after its own update, take generated points for real ones."""
    (real,) = batch
    return cross_entropy(model.discriminator(model.sample(len(real), real.device)), 1.0)


def corners() -> torch.Tensor:
    """Eight points on the unit circle."""
    angles = 2 * math.pi * torch.arange(CORNERS) / CORNERS
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def quality(model: Gan) -> tuple[float, int]:
    """Mean distance of 1000 generated points from the nearest corner, and how many corners have 20 points or more."""
    device = next(model.parameters()).device
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        distances = torch.cdist(model.sample(1000, device), corners().to(device))
    nearest = distances.min(dim=1)
    hits = torch.bincount(nearest.indices[nearest.values < 5 * SPREAD], minlength=CORNERS)
    return nearest.values.mean().item(), int((hits >= 20).sum())


class Watch(Callback):
    """Puts the quality of each epoch into the log; a log line has the mean over its epochs."""

    def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
        """Called on every rank, after the last update of an epoch."""
        distance, found = quality(trainer.model)
        trainer.log("distance", distance)
        trainer.log("corners", found)


def main() -> None:
    """Train both."""
    torch.manual_seed(0)
    rows = corners()[torch.arange(4096) % CORNERS] + SPREAD * torch.randn(4096, 2)
    config = RunConfig.model_validate(
        {
            "train": {"global_batch": 256, "epochs": 60, "schedule": {"name": "constant"}, "max_norm": None},
            "track": {"every": 160},
        }
    )
    trainer = Trainer(
        Gan(),
        config,
        TensorDataset(rows),
        # In each update they take turns in this order. Each trains what its optimizer has, and nothing else.
        loss={"discriminator": discriminator_loss, "generator": generator_loss},
        optimizer={
            "discriminator": lambda model: torch.optim.Adam(model.discriminator.parameters(), 1e-3, betas=(0.5, 0.99)),
            "generator": lambda model: torch.optim.Adam(model.generator.parameters(), 1e-3, betas=(0.5, 0.99)),
        },
        callbacks=[Watch()],
    )
    with trainer:
        trainer.fit()


if __name__ == "__main__":
    main()
