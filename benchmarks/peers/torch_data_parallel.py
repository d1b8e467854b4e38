"""torch.nn.DataParallel: one process, which makes the replicas anew in every forward pass. It cannot be compiled."""

from __future__ import annotations

from typing import Any

import torch
from task import MAX_NORM, Meter, loader_of, model_of, optimizer_of, read_task
from torch import Tensor, nn

task, num_devices, _ = read_task()
device = torch.device("cuda", 0) if task.device == "cuda" else torch.device("cpu")


class WithLoss(nn.Module):
    """The loss is computed on each GPU: gathering the logits of all would fill the first one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=task.precision == "bf16"):
            return self.model(input_ids=input_ids, labels=labels).loss.unsqueeze(0)  # type: ignore[no-any-return]


model = model_of(task).to(device)
# Without GPUs it runs the module as it is, on all rows.
run: Any = nn.DataParallel(WithLoss(model), device_ids=list(range(num_devices)) if task.device == "cuda" else None)
optimizer = optimizer_of(task, model)
loader = loader_of(task, task.micro_batch * num_devices)
meter = Meter(task, num_devices, "torch DataParallel")
while not meter.done:
    for batch in loader:
        ids, labels = (batch[name].to(device, non_blocking=True) for name in ("input_ids", "labels"))
        loss = run(ids, labels).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter(loss)
        if meter.done:
            break
meter.finish("transformers")
