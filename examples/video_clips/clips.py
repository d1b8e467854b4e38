"""What all programs here share: clips of pictures that move, a network with BatchNorm that says where to, the options.

A picture of clothing (Fashion-MNIST) moves over an empty canvas to the left, right, up or down, and the direction is
what is learned: no single frame tells it. Where the Debian package dataset-fashion-mnist is not installed, the
pictures are the 1,000 that are packed with drumline.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Loss
from drumline.config.recipes import recipes_folder
from drumline.config.schema import RunConfig

PACKAGE = Path("/usr/share/datasets/fashion-mnist")
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
FRAMES, SIDE, PICTURE = 6, 20, 14
SMALL, LARGE = (512, 128), (24_000, 4_000)
"""Clips to learn from and held-out ones."""


def pictures(name: str, limit: int) -> Tensor:
    """The first of `train` or `eval`, values in 0..1, [pictures, PICTURE, PICTURE]."""
    if PACKAGE.is_dir():
        file = PACKAGE / f"{'train' if name == 'train' else 't10k'}-images-idx3-ubyte.gz"
        pixels = np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)[:limit]
    else:
        from PIL import Image

        files = sorted((recipes_folder() / "fashion" / name).rglob("*.png"))[:limit]
        pixels = np.stack([np.asarray(Image.open(file).convert("L")) for file in files])
    return F.avg_pool2d(torch.tensor(pixels).float() / 255, 2)


def way(step: int, frame: int) -> int:
    """Pixels from the upper or left edge; a path backwards begins where one forwards ends."""
    return step * frame if step >= 0 else FRAMES - 1 - frame


class Clips(Dataset[tuple[Tensor, int]]):
    """Clip n is always the same: [1, FRAMES, SIDE, SIDE], and the number of its direction."""

    def __init__(self, name: str, num_clips: int) -> None:
        self._pictures, self._num_clips = pictures(name, num_clips), num_clips

    def __len__(self) -> int:
        return self._num_clips

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        draw = torch.Generator().manual_seed(number)
        direction, *begin = (int(torch.randint(end, (), generator=draw)) for end in (4, 2, 2))
        down, right = list(DIRECTIONS.values())[direction]
        clip = torch.zeros(1, FRAMES, SIDE, SIDE)
        for frame in range(FRAMES):  # a pixel each
            top, left = begin[0] + way(down, frame), begin[1] + way(right, frame)
            clip[0, frame, top : top + PICTURE, left : left + PICTURE] = self._pictures[number % len(self._pictures)]
        return clip, direction


class Block(nn.Sequential):
    """A 3-D convolution over time and place, BatchNorm, ReLU."""

    def __init__(self, channels: int) -> None:
        convolution = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        super().__init__(convolution, nn.BatchNorm3d(channels), nn.ReLU())


class ClipClassifier(nn.Module):
    """Clips [B, 1, T, H, W] to scores [B, 4]."""

    def __init__(self, width: int = 12, num_blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, width, 3, stride=(1, 2, 2), padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, len(DIRECTIONS))

    def forward(self, clips: Tensor) -> Tensor:
        """The mean over time and place of what the blocks find."""
        found = self.first(clips)
        for block in self.blocks:
            found = block(found)
        scores: Tensor = self.head(found.mean(dim=(2, 3, 4)))
        return scores


def create_model() -> ClipClassifier:
    """With the same fresh weights on every rank."""
    torch.manual_seed(0)
    return ClipClassifier()


def create_datasets(small: bool = not torch.cuda.is_available()) -> tuple[Clips, Clips]:
    """Clips to learn from, and held-out ones of other pictures."""
    num_train, num_held_out = SMALL if small else LARGE
    return Clips("train", num_train), Clips("eval", num_held_out)


def loss_fn(outputs: Tensor, targets: Tensor) -> Loss:
    """Cross-entropy summed over the clips, and the share of them whose direction is right."""
    right = (outputs.argmax(dim=1) == targets).sum()
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), metrics={"accuracy": (right, len(targets))})


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Of all its parameters."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


# What the recipe's `model: {kind: python}` takes from this file.


def make_model(config: RunConfig) -> nn.Module:
    """The model with fresh weights."""
    return create_model()


def make_data(config: RunConfig) -> tuple[Clips, Clips]:
    """Clips to learn from, and held-out ones."""
    return create_datasets()


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
    """Of one micro-batch."""
    clips, targets = batch
    return loss_fn(model(clips), targets)


def peaks(benchmark: dict[str, Any]) -> dict[str, int]:
    """By GPU, or process on the CPU, the most memory (MiB) of what benchmark_multi_gpu_performance found."""
    memory = benchmark["gpu_utilization"]["memory_usage"]
    keys = ("peak_allocated_bytes", "peak_resident_bytes")
    return {name: next(each[key] for key in keys if key in each) // 2**20 for name, each in memory.items()}


def parse(text: str | None, epochs: int = 2) -> argparse.Namespace:
    """Options of every program: `small` and `epochs`."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    few = "few clips; without a GPU always so"
    parser.add_argument("--small", action="store_true", default=not torch.cuda.is_available(), help=few)
    parser.add_argument("--epochs", type=int, default=epochs)
    return parser.parse_args()
