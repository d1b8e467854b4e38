"""The loop of accelerate's own documentation."""

from __future__ import annotations

from accelerate import Accelerator
from task import MAX_NORM, Meter, loader_of, model_of, optimizer_of, read_task

task, num_devices, _ = read_task()
accelerator = Accelerator(
    cpu=task.device == "cpu",
    mixed_precision="bf16" if task.precision == "bf16" else "no",
    dynamo_backend="inductor" if task.compile else "no",
)
model = model_of(task)
model, optimizer, loader = accelerator.prepare(model, optimizer_of(task, model), loader_of(task, task.micro_batch))
meter = Meter(task, num_devices, "accelerate")
while not meter.done:
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        meter(loss)
        if meter.done:
            break
meter.finish("accelerate", "transformers")
accelerator.end_training()
