"""The arithmetic of recipe gpt2_124m as a plain loop on torch alone, to measure what the engine costs around it.

Run by benchmarks/gpt2.sh. Prints one line that begins with RESULT.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.environ["PEERS"])

import torch
import torch.distributed as dist
from common import CONTEXT, MICRO_BATCH, VOCAB, Meter
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from drumline.config.load import load_config
from drumline.config.model import DecoderModel
from drumline.data.random_tokens import RandomTokenRows
from drumline.models.decoder import decoder_from_config
from drumline.models.flops import training_flops_per_unit

local = int(os.environ.get("LOCAL_RANK", 0))
world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("RANK", 0))
torch.cuda.set_device(local)
torch.set_float32_matmul_precision("high")
if world > 1:
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
config = load_config("gpt2_124m")
assert isinstance(config.model, DecoderModel)


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.model(ids).float().flatten(0, 1), labels.flatten())


torch.manual_seed(0)
model = decoder_from_config(config.model, VOCAB, CONTEXT).cuda()
data = RandomTokenRows(8192, CONTEXT, VOCAB, 0)
sampler = DistributedSampler(data, world, rank) if world > 1 else None
loader = DataLoader(
    data,
    MICRO_BATCH,
    sampler=sampler,
    shuffle=sampler is None,
    num_workers=2,
    pin_memory=True,
    drop_last=True,
    persistent_workers=True,
)
run: nn.Module = WithLoss(model)
if world > 1:
    run = DistributedDataParallel(run, device_ids=[local], gradient_as_bucket_view=True)
run = torch.compile(run)  # type: ignore[assignment]
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
settings = config.train.optimizer
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
    lr=config.train.lr,
    betas=settings.betas,
    fused=True,
)
meter = Meter("decoder by hand", training_flops_per_unit(model) or 0.0, world, rank)
while not meter.done:
    for batch in loader:
        ids, labels = (batch[name].cuda(non_blocking=True) for name in ("input_ids", "labels"))
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        meter()
        if meter.done:
            break
if world > 1:
    dist.destroy_process_group()
