"""What of the gradient reduction is hidden behind the backward pass, by bucket size, compiled form and compression.

    torchrun --standalone --nproc-per-node N benchmarks/overlap.py OUT.jsonl [--minutes 4.5] [--only NAME…] [--rows 64]

Recipe gpt2_124m on random tokens, 32 rows a GPU and update unless told; --tiny tries the script on a CPU. Each variant
is measured with its reduction and without it in one process, in turn; the difference is exposed. Beside it, from a
profile of rank 0: how long only NCCL's kernels ran, which has in it what rank 0 waited for the others. The last column
is the step of the first variant without reduction (one uncut graph that sends nothing) over the variant's step: how
near it comes to linear scaling.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from timed_steps import advance, synchronise, timed
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from drumline.build.parts import build_trainer
from drumline.config.load import load_config
from drumline.parallel.compression import SentBucket, Wire
from drumline.parallel.ddp import Ddp
from drumline.parallel.reduction import Reduction
from drumline.rundir import RunDir

WARM_UP, ROUNDS, STEPS, PROFILED = 8, 3, 8, 3
SMALL = ["model.num_layers=2", "model.num_heads=2", "model.width=32", "train.compile=none", "hardware.device=cpu"]


@dataclass(frozen=True)
class Variant:
    """How gradients are reduced."""

    compile: str
    bucket_mb: int = 25
    cut: bool = True
    compression: str = "none"
    static: bool = False

    @property
    def name(self) -> str:
        form = "whole, cut" if self.compile == "whole" and self.cut else self.compile
        packed = "" if self.compression == "none" else f", {self.compression}"
        return f"{form}, {self.bucket_mb} MiB{packed}{', static' if self.static else ''}"

    def overrides(self) -> list[str]:
        options = f"kind: ddp, bucket_mb: {self.bucket_mb}, cut_graphs: {json.dumps(self.cut)}"
        options += f", compression: {self.compression}, static_graph: {json.dumps(self.static)}"
        if self.compression == "power_sgd":
            options += ", power_sgd_start: 2"
        return [f"parallel={{{options}}}", f"train.compile={self.compile}"]


# What answers most comes first, in case the minutes do not suffice for all.
VARIANTS = [
    Variant("whole", 200, cut=False),
    Variant("blocks"),
    Variant("whole", cut=False),
    Variant("whole"),
    Variant("whole", 100),
    Variant("whole", 100, cut=False),
    Variant("whole", cut=False, compression="bf16"),
    Variant("whole", 50),
    Variant("whole", 200),
    Variant("blocks", 100),
    Variant("whole", cut=False, static=True),
    Variant("whole", cut=False, compression="power_sgd"),
    Variant("whole", 10),
    Variant("whole", 10, cut=False),
    Variant("whole", cut=False, compression="fp16"),
]


class Silent(Wire):
    """Sends nothing."""

    def sum(self, bucket: SentBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        devices = [gradient.device] if gradient.is_cuda else None
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        future.set_result(gradient)
        return future


def measure(variant: Variant, number: int, rows: int, *, tiny: bool) -> dict[str, Any]:
    """One trainer: warm-up, then steps with and without reduction in turn, then a profile."""
    world, began = dist.get_world_size(), time.perf_counter()
    context, vocab_size = (32, 256) if tiny else (1024, 50304)
    total = WARM_UP + 2 * ROUNDS * STEPS + PROFILED + 1  # the last one logs and ends the run
    overrides = [
        f"data={{kind: random_tokens, num_rows: {rows * world * total}, context: {context}, vocab_size: {vocab_size}}}",
        f"train.global_batch={rows * world}",
        f"train.max_steps={total}",
        "loader.num_workers=2",
        "evaluate.every=end",
        "checkpoint.at_end=false",
        f"track={{console: false, every: {total}}}",
        *variant.overrides(),
        *(SMALL if tiny else []),
    ]
    run = os.environ.get("TORCHELASTIC_RUN_ID", "alone")
    folder = Path(tempfile.gettempdir()) / f"overlap-{run}-{number}"
    folder.mkdir(exist_ok=True)
    found: dict[bool, list[float]] = {True: [], False: []}
    with build_trainer(load_config("gpt2_124m", overrides), RunDir(folder)) as trainer:
        steps = trainer.steps()
        advance(steps, WARM_UP)
        ready_s = time.perf_counter() - began
        reduction = reduction_of(trainer._run.strategy)
        wires = {True: reduction.wire, False: Silent(reduction.wire._group)}
        for _ in range(ROUNDS):
            for sends, wire in wires.items():
                reduction.wire = wire
                found[sends].append(timed(steps, STEPS))
        reduction.wire = wires[True]
        exposed = profiled(steps)
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        for _ in steps:
            pass
    step_ms, alone_ms = (1000 * statistics.median(found[sends]) for sends in (True, False))
    of_ranks: list[Any] = [None] * world
    dist.all_gather_object(of_ranks, round(alone_ms, 3))
    return {
        "name": variant.name,
        **vars(variant),
        "rows": rows,
        "gpus": world,
        "tokens_per_s": round(rows * world * context / step_ms * 1000),
        "step_ms": round(step_ms, 3),
        "step_without_reduction_ms": round(alone_ms, 3),
        "without_reduction_by_rank_ms": of_ranks,
        "exposed_ms": round(step_ms - alone_ms, 3),
        "only_nccl_ms": exposed,
        "runs_ms": [[round(1000 * seconds, 3) for seconds in found[sends]] for sends in (True, False)],
        "ready_s": round(ready_s, 1),
        "peak_gib": round(peak / 2**30, 2),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }


def reduction_of(strategy: object) -> Reduction:
    """Where the one learner's buckets go through."""
    assert isinstance(strategy, Ddp), "run it under torchrun, on two processes at least"
    (replica,) = strategy._replicas.values()
    return replica.reduction


def profiled(steps: Iterator[object]) -> float | None:
    """Milliseconds a step in which only NCCL's kernels ran on this GPU."""
    if not torch.cuda.is_available():
        advance(steps, PROFILED)
        return None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        advance(steps, PROFILED)
        synchronise()
    kernels = [event for event in seen.events() if event.device_type == DeviceType.CUDA]
    spans = {
        sends: [(k.time_range.start, k.time_range.end) for k in kernels if k.name.startswith("nccl") == sends]
        for sends in (True, False)
    }
    busy, computing = covered([*spans[True], *spans[False]]), covered(spans[False])
    return round((busy - computing) / 1000 / PROFILED, 3)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of what the spans cover together."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def agreed(value: float) -> float:
    """Rank 0's."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    linear = rows[0]["step_without_reduction_ms"]
    print(f"{rows[0]['gpus']} x {rows[0]['device']}, torch {rows[0]['torch']}; milliseconds a step")
    columns = {"tokens/s": 12, "step": 9, "alone": 9, "exposed": 9, "share": 8, "NCCL": 8, "linear": 8, "start s": 9}
    print(" " * 32 + "".join(f"{name:>{width}}" for name, width in columns.items()))
    for row in rows:
        share = row["exposed_ms"] / row["step_ms"]
        nccl = "" if row["only_nccl_ms"] is None else f"{row['only_nccl_ms']:.2f}"
        print(
            f"{row['name']:32}{row['tokens_per_s']:12,}{row['step_ms']:9.2f}{row['step_without_reduction_ms']:9.2f}"
            f"{row['exposed_ms']:9.2f}{share:8.1%}{nccl:>8}{linear / row['step_ms']:8.1%}{row['ready_s']:9.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file that rows are appended to, one JSON line each")
    parser.add_argument("--minutes", type=float, default=4.5, help="start no variant after so long")
    parser.add_argument("--only", nargs="+", default=[], help="variants whose name has one of these in it")
    parser.add_argument("--rows", type=int, help="a GPU and update; 32, or 4 with --tiny")
    parser.add_argument("--tiny", action="store_true", help="a small shape on the CPU: does the script itself work?")
    asked = parser.parse_args()
    began = time.monotonic()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    wanted = [v for v in VARIANTS if not asked.only or any(part in v.name for part in asked.only)]
    rows = []
    for number, variant in enumerate(wanted):
        if agreed(time.monotonic() - began) > 60 * asked.minutes:
            break
        torch._dynamo.reset()
        rows.append(measure(variant, number, asked.rows or (4 if asked.tiny else 32), tiny=asked.tiny))
        if dist.get_rank() == 0:
            with asked.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    if dist.get_rank() == 0:
        print_table(rows)
        if left := wanted[len(rows) :]:
            print(f"no time was left for {'; '.join(v.name for v in left)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
