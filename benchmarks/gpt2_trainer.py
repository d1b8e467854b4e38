"""Hugging Face GPT-2 124M through `Trainer`, on the task of the hand-written loop that it is compared with.

Run by benchmarks/gpt2.sh, alternating with the peer, so that both see the same card in the same state. The settings are
the peer's: context 1024, micro-batch 32 a GPU, bf16 autocast, fused AdamW, clipping at 1.0, torch.compile, a loader
with two processes. Prints one line that begins with RESULT.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.environ["PEERS"])

from common import MICRO_BATCH, STEPS, WARMUP, Meter, RandomTokens, build_model, flops_per_token

from drumline import RunConfig, Trainer

world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("RANK", 0))
model = build_model()
config = RunConfig.model_validate(
    {
        "run_dir": str(Path(tempfile.gettempdir()) / f"gpt2-{os.environ['BENCH_RUN']}"),
        "train": {
            "global_batch": MICRO_BATCH * world,
            "max_steps": WARMUP + STEPS,
            "compile": "whole",
            "schedule": {"name": "constant"},
            "optimizer": {"betas": [0.9, 0.999], "weight_decay": 0.01, "decay_all": True},
        },
        "loader": {"num_workers": 2},
        "checkpoint": {"at_end": False},
        "track": {"every": int(os.environ.get("LOG_EVERY", 10)), "console": False},
    }
)
meter = Meter("drumline Trainer", flops_per_token(model), world, rank)
with Trainer(model, config, RandomTokens()) as trainer:
    for _ in trainer.steps():
        meter()
