"""How long training stands still for a save: an asynchronous one against one that is waited for.

    python benchmarks/async_save.py OUT.jsonl [--folder DISK] [--rounds 3] [--only NAME…] [--tiny]
    torchrun --standalone --nproc-per-node N benchmarks/async_save.py OUT.jsonl

Recipe gpt2_124m with AdamW on random tokens, 16 rows a GPU and update. The GPU is waited for before each save, so that
nothing but the save is measured. `waited` is a save until it is in its place, `stall` what an asynchronous one takes
until training goes on (the first one also asks for page-locked memory), `in place` the same one until it is in its
place. Beside them the step without a write and with one under way. Bar: stall below 5% of waited.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from timed_steps import advance, synchronise, timed

from drumline.build.parts import build_trainer
from drumline.config.load import load_config
from drumline.engine.run import Run
from drumline.manifest import checkpoints_of
from drumline.rundir import RunDir

WARM_UP, STEPS = 8, 5
BAR = 0.05
SMALL = ["model.num_layers=2", "model.num_heads=2", "model.width=32", "train.compile=none", "hardware.device=cpu"]


@dataclass(frozen=True)
class Variant:
    """What is saved how."""

    name: str
    kind: str
    format: str


def variants(world: int) -> list[Variant]:
    """Of one process, or of several."""
    if world == 1:
        return [Variant("whole", "single", "whole"), Variant("sharded", "single", "sharded")]
    return [Variant("ddp whole", "ddp", "whole"), Variant("fsdp sharded", "fsdp", "sharded")]


def measure(variant: Variant, folder: Path, rounds: int, *, tiny: bool) -> dict[str, Any]:
    """One trainer, with saves of both ways in turn."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    context, vocab_size, rows = (32, 256, 4) if tiny else (1024, 50304, 16)
    total = WARM_UP + (1 + rounds) * 2 * STEPS + 1  # the last one logs and ends the run
    overrides = [
        f"data={{kind: random_tokens, num_rows: {rows * world * total}, context: {context}, vocab_size: {vocab_size}}}",
        f"train.global_batch={rows * world}",
        f"train.micro_batch={rows}",
        f"train.max_steps={total}",
        "train.optimizer.name=adamw",
        "loader.num_workers=2",
        "evaluate.every=end",
        f"checkpoint={{at_end: false, keep: 1, format: {variant.format}}}",
        f"track={{console: false, every: {total}}}",
        f"parallel.kind={variant.kind}",
        *(SMALL if tiny else []),
    ]
    directory = RunDir(folder / variant.name.replace(" ", "_"))
    directory.path.mkdir(exist_ok=True)
    waited, stalls, placed, plain, loaded = [], [], [], [], []
    with build_trainer(load_config("gpt2_124m", overrides), directory) as trainer:
        steps, run = trainer.steps(), trainer._run
        advance(steps, WARM_UP)
        for _ in range(1 + rounds):  # the first one of each is shown by itself
            waited.append(save(run, wait=True))
            plain.append(timed(steps, STEPS))
            began = time.perf_counter()
            stalls.append(save(run, wait=False))
            loaded.append(timed(steps, STEPS))
            run.checkpoints.finish(run)
            placed.append(time.perf_counter() - began)
        size = checkpoints_of(directory)[0].bytes
        for _ in steps:
            pass
    return {
        "name": variant.name,
        "gpus": world if torch.cuda.is_available() else 0,
        "gib": round(size / 2**30, 3),
        "waited_s": round(statistics.median(waited[1:]), 4),
        "first_stall_s": round(stalls[0], 4),
        "stall_s": round(statistics.median(stalls[1:]), 4),
        "share": round(statistics.median(stalls[1:]) / statistics.median(waited[1:]), 4),
        "in_place_s": round(statistics.median(placed[1:]), 4),
        "step_ms": round(1000 * statistics.median(plain), 3),
        "step_while_writing_ms": round(1000 * statistics.median(loaded), 3),
        "runs_s": {name: [round(s, 4) for s in each] for name, each in (("waited", waited), ("stall", stalls))},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }


def save(run: Run, *, wait: bool) -> float:
    """Seconds until training may go on."""
    synchronise()
    began = time.perf_counter()
    run.checkpoints.save(run, wait=wait)
    return time.perf_counter() - began


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{rows[0]['gpus']} x {rows[0]['device']}, torch {rows[0]['torch']}; seconds, steps in milliseconds")
    columns = ("GiB", "waited", "stall", "first", "share", "in place", "step", "writing")
    print(" " * 14 + "".join(f"{name:>10}" for name in columns))
    for row in rows:
        numbers = [row[key] for key in ("gib", "waited_s", "stall_s", "first_stall_s")]
        print(
            f"{row['name']:14}"
            + "".join(f"{number:10.3f}" for number in numbers)
            + f"{row['share']:10.1%}{row['in_place_s']:10.3f}{row['step_ms']:10.2f}{row['step_while_writing_ms']:10.2f}"
            + ("" if row["share"] < BAR else "  NOT below 5%")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file that rows are appended to, one JSON line each")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; none: the temporary folder")
    parser.add_argument("--rounds", type=int, default=3, help="saves of each way, after a first one")
    parser.add_argument("--only", nargs="+", default=[], help="variants whose name has one of these in it")
    parser.add_argument("--tiny", action="store_true", help="a small shape on the CPU: does the script itself work?")
    asked = parser.parse_args()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    rank = int(os.environ.get("RANK", 0))
    rows = []
    # Ranks share the folder, so its name is what they all know.
    name = f"async-save-{os.environ.get('TORCHELASTIC_RUN_ID', os.getpid())}"
    folder = (asked.folder or Path(tempfile.gettempdir())) / name
    folder.mkdir(parents=True, exist_ok=True)
    for variant in variants(int(os.environ.get("WORLD_SIZE", 1))):
        if not asked.only or any(part in variant.name for part in asked.only):
            torch._dynamo.reset()
            rows.append(measure(variant, folder, asked.rounds, tiny=asked.tiny))
            if rank == 0:
                with asked.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    if rank == 0:
        print_table(rows)
        print(f"the checkpoints are in {folder}; remove it")


if __name__ == "__main__":
    main()
