"""The loop of Lightning Fabric's own documentation."""

from __future__ import annotations

import os

import torch
from lightning.fabric import Fabric
from task import MAX_NORM, Meter, loader_of, model_of, optimizer_of, read_task

task, num_devices, _ = read_task()
world = int(os.environ.get("WORLD_SIZE", 1))
fabric = Fabric(
    accelerator=task.device,
    devices=world,
    strategy="ddp" if world > 1 else "auto",
    precision="bf16-mixed" if task.precision == "bf16" else "32-true",
)
fabric.launch()
model = model_of(task)
optimizer = optimizer_of(task, model)
model, optimizer = fabric.setup(torch.compile(model) if task.compile else model, optimizer)
loader = fabric.setup_dataloaders(loader_of(task, task.micro_batch))
meter = Meter(task, num_devices, "Lightning Fabric")
while not meter.done:
    for batch in loader:
        loss = model(**batch).loss
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        meter(loss)
        if meter.done:
            break
meter.finish("lightning", "transformers")
