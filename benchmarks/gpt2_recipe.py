"""Recipe gpt2_124m with the reference decoder, on random tokens: what `drumline train` runs in each process.

Run by benchmarks/gpt2.sh. Prints one line that begins with RESULT.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.environ["PEERS"])

from common import CONTEXT, MICRO_BATCH, STEPS, VOCAB, WARMUP, Meter

from drumline.build.parts import build_trainer
from drumline.config.load import load_config
from drumline.models.flops import training_flops_per_unit
from drumline.rundir import RunDir

world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("RANK", 0))
folder = Path(tempfile.gettempdir()) / f"gpt2-recipe-{os.environ['BENCH_RUN']}"
folder.mkdir(exist_ok=True)
config = load_config(
    "gpt2_124m",
    [
        f"data={{kind: random_tokens, num_rows: 8192, context: {CONTEXT}, vocab_size: {VOCAB}}}",
        f"train.global_batch={MICRO_BATCH * world}",
        f"train.max_steps={WARMUP + STEPS}",
        "loader.num_workers=2",
        "evaluate.every=end",
        "checkpoint.at_end=false",
        "track.console=false",
    ],
)
with build_trainer(config, RunDir(folder)) as trainer:
    meter = Meter("drumline recipe", training_flops_per_unit(trainer.model) or 0.0, world, rank)
    for _ in trainer.steps():
        meter()
