"""Hugging Face's Trainer, with our optimizer, a constant rate, and the rows in order."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from task import MAX_NORM, Meter, model_of, optimizer_of, read_task, rows_of
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

task, num_devices, _ = read_task()
cuda = task.device == "cuda"
model = model_of(task)
optimizer = optimizer_of(task, model)
meter = Meter(task, num_devices, "HF Trainer")


class InOrder(Trainer):  # type: ignore[misc]
    """Keeps the loss of each update for the meter, on its device."""

    loss: Any = None

    def _get_train_sampler(self, *_: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, *inputs: Any, **settings: Any) -> Any:
        self.loss = super().compute_loss(*inputs, **settings)
        return self.loss


class Clock(TrainerCallback):  # type: ignore[misc]
    """Calls the meter after each update."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        meter(trainer.loss)


with tempfile.TemporaryDirectory() as folder:
    trainer = InOrder(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task.micro_batch,
            max_steps=task.updates,
            bf16=task.precision == "bf16",
            torch_compile=task.compile,
            use_cpu=not cuda,
            ddp_backend=("nccl" if cuda else "gloo") if num_devices > 1 else None,
            max_grad_norm=MAX_NORM,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            dataloader_num_workers=task.workers,
            dataloader_pin_memory=cuda,
            dataloader_persistent_workers=task.workers > 0,
            dataloader_drop_last=True,
        ),
        train_dataset=rows_of(task),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        callbacks=[Clock()],
    )
    trainer.train()
meter.finish("transformers", "accelerate")
