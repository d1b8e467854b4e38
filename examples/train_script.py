"""A next-byte model of Moby Dick: a script of one's own with drumline's five lines at its end.

It runs unchanged, and with the same losses, as

    python examples/train_script.py
    drumline launch examples/train_script.py
    torchrun --standalone --nproc-per-node 2 examples/train_script.py
    accelerate launch --multi_gpu --num_processes 2 examples/train_script.py
    srun --ntasks 2 python examples/train_script.py

`drumline launch` starts a process a GPU; on a machine without any, `--set hardware.num_processes=2` makes it two.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import TrainConfig, Trainer
from drumline.config.recipes import expand_path

CONTEXT = 16


class NextByte(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a text: CONTEXT bytes, and the one that follows them."""

    def __init__(self, file: str) -> None:
        self._text = torch.tensor(list(Path(expand_path(file)).read_bytes()))

    def __len__(self) -> int:
        return len(self._text) // (CONTEXT + 1)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        begin = row * (CONTEXT + 1)
        return self._text[begin : begin + CONTEXT], self._text[begin + CONTEXT]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the batch, in nats a byte."""
    context, following = batch
    return nn.functional.cross_entropy(model(context), following)


torch.manual_seed(0)
# In float64, so that the losses of any number of processes agree to more digits than a log line shows.
model = nn.Sequential(nn.Embedding(256, 8), nn.Flatten(), nn.Linear(8 * CONTEXT, 256)).double()
train, held_out = NextByte("recipes:moby_dick/chapter_1.txt"), NextByte("recipes:moby_dick/chapter_2.txt")

config = TrainConfig(global_batch=32, epochs=2, lr=0.003, precision="fp32")
with Trainer(model, config, train, eval_data=held_out, loss=loss) as trainer:
    trainer.fit()
