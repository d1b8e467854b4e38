"""A process a GPU, on a machine without GPU two: gradients and BatchNorm's statistics are the same on all of them.

python examples/video_clips/distributed.py
"""

from __future__ import annotations

from typing import Any

import torch
from clips import create_datasets, create_model, loss_fn, optimizer_of, parse

import drumline
from drumline.adapters.opus_clip import DistributedDataParallelTrainer, MultiGPUConfig


def train_on_rank(small: bool, epochs: int) -> dict[str, Any]:
    """What each process does; drumline has told it its rank."""
    model = create_model()
    config = MultiGPUConfig(strategy="distributed", batch_size=16, num_workers=0)  # 16 clips a process
    trainer = DistributedDataParallelTrainer(model, config, *create_datasets(small), optimizer_of(model), loss_fn)
    for epoch in range(epochs):
        found = trainer.train_epoch(epoch) | trainer.validate(epoch)
    trainer.save_checkpoint(epochs - 1, "runs/distributed.pth")  # rank 0 writes it
    trainer.cleanup()
    means = {name: each.sum().item() for name, each in model.named_buffers() if name.endswith("running_mean")}
    return {**found, **means}


if __name__ == "__main__":
    options = parse(__doc__)
    # torchrun and `drumline launch` start whole programs; this starts a function on every rank, and brings back
    # what each returned. drumline.adapters.opus_clip.launch_distributed_training does the same for a bare model.
    num_processes = None if torch.cuda.is_available() else 2
    ranks = drumline.launch(train_on_rank, (options.small, options.epochs), num_processes=num_processes)
    for rank, found in enumerate(ranks):
        values = ", ".join(f"{name} {value:.6g}" for name, value in found.items())
        print(f"rank {rank}: {values}")
