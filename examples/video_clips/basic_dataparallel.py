"""All GPUs of one process, without a launcher; on a machine without GPU two replicas that take turns.

python examples/video_clips/basic_dataparallel.py
"""

from __future__ import annotations

import torch
from clips import create_datasets, create_model, loss_fn, optimizer_of, parse

from drumline.adapters.opus_clip import DataParallelTrainer, MultiGPUConfig


def main(small: bool, epochs: int) -> None:
    """Train, and say after each epoch how well held-out clips are told apart."""
    model = create_model()
    replicas = None if torch.cuda.is_available() else 2  # None: all GPUs
    config = MultiGPUConfig(strategy="dataparallel", num_gpus=replicas, batch_size=32, num_workers=0)
    train, held_out = create_datasets(small)
    trainer = DataParallelTrainer(model, config, train, held_out, optimizer_of(model), loss_fn)
    for epoch in range(epochs):
        found = trainer.train_epoch(epoch) | trainer.validate(epoch)
        print(
            f"epoch {epoch}: loss {found['train_loss']:.3f}, {found['samples'] / found['seconds']:.0f} clips/s, "
            f"held out: loss {found['val_loss']:.3f}, accuracy {found['val_accuracy']:.3f}"
        )
    trainer.save_checkpoint(epochs - 1, "runs/basic_dataparallel.pth")
    trainer.cleanup()


if __name__ == "__main__":
    options = parse(__doc__)
    main(options.small, options.epochs)
