"""Three errors: too little memory, a setting that is none, and a clip that cannot be read.

python examples/video_clips/error_handling.py
"""

from __future__ import annotations

from typing import Any

import torch
from clips import Clips, create_datasets, create_model, loss_fn, optimizer_of, parse
from torch import Tensor

from drumline.adapters.opus_clip import DataParallelTrainer, MultiGPUConfig, MultiGPUTrainingManager
from drumline.errors import DrumlineError

ROOM = 16
"""Clips of which a pass fits into the memory that small_memory plays."""


def small_memory(outputs: Tensor, targets: Tensor) -> Any:
    """The loss on a GPU whose memory is full with more than ROOM clips at a time."""
    if len(targets) > ROOM:
        raise torch.OutOfMemoryError("CUDA out of memory (played)")
    return loss_fn(outputs, targets)


class Broken(Clips):
    """Whose clip 100 cannot be read, until it is repaired."""

    is_repaired = False

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if number == 100 and not self.is_repaired:
            raise OSError("clip 100 is damaged")
        return super().__getitem__(number)


def out_of_memory(small: bool) -> None:
    """Smaller passes for the same update are taken by themselves; only what no single clip fits gets to the except."""
    model, config = create_model(), MultiGPUConfig(strategy="single", batch_size=32, num_workers=0)
    trainer = DataParallelTrainer(model, config, create_datasets(small)[0], None, optimizer_of(model), small_memory)
    try:
        found = trainer.train_epoch(0)
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        config.batch_size //= 2
        found = trainer.train_epoch(0)
    print(f"out of memory: {found['updates']} updates of {config.batch_size} clips all the same")
    trainer.cleanup()


def wrong_setting(small: bool) -> None:
    """An error of drumline's says what is wrong, and what to do."""
    config = MultiGPUConfig(strategy="dataparalel")  # type: ignore[arg-type]
    try:
        MultiGPUTrainingManager(config).create_trainer(create_model(), create_datasets(small)[0])
    except DrumlineError as error:
        print(f"wrong setting: {error}")


def damaged_clip(small: bool) -> None:
    """What fails in an epoch ends it; training goes on from the checkpoint before."""
    model, config = create_model(), MultiGPUConfig(strategy="auto", batch_size=32, num_workers=0)
    train, held_out = create_datasets(small)
    data = Broken("train", len(train))
    trainer = MultiGPUTrainingManager(config).create_trainer(
        model, data, held_out, optimizer=optimizer_of(model), loss_fn=loss_fn
    )
    file = trainer.save_checkpoint(0, "runs/before_the_epoch.pth")
    try:
        trainer.train_epoch(0)
    except OSError as error:
        print(f"damaged clip: {error}")
        data.is_repaired = True
        trainer.load_checkpoint(file)
        print(f"trained again: loss {trainer.train_epoch(0)['train_loss']:.3f}")
    trainer.cleanup()


if __name__ == "__main__":
    options = parse(__doc__)
    for show in (out_of_memory, wrong_setting, damaged_clip):
        show(options.small)
