"""A loop on torch alone, as somebody who knows torch well writes it: what all others are measured by."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from task import MAX_NORM, Meter, loader_of, model_of, optimizer_of, read_task, rows_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

task, num_devices, _ = read_task()
world, rank, local = (
    int(os.environ.get(name, other)) for name, other in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0))
)
cuda = task.device == "cuda"
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
if world > 1:
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
model = model_of(task).to(device)
run: Any = model
if world > 1:
    run = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
if task.compile:
    run = torch.compile(run)
optimizer = optimizer_of(task, model)
sampler = DistributedSampler(rows_of(task), world, rank, shuffle=False) if world > 1 else None
loader = loader_of(task, task.micro_batch, sampler)
meter = Meter(task, num_devices, "torch DDP by hand")
while not meter.done:
    for batch in loader:
        batch = {name: rows.to(device, non_blocking=True) for name, rows in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=task.precision == "bf16"):
            loss = run(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter(loss)
        if meter.done:
            break
meter.finish("transformers")
if world > 1:
    dist.destroy_process_group()
