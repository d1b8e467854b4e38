"""The one task that every contestant runs: its description, its rows, its model and optimizer, and how it is timed.

A contestant is a script: `python SCRIPT TASK.json NUM_DEVICES [ARGUMENTS]`, in one process, or in one a device under
torch's launcher. Rank 0 prints one JSON line. Rows are read in order, so that every contestant sees the same rows in
the same update: their losses are equal but for rounding.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

LR, BETAS, WEIGHT_DECAY, MAX_NORM = 3e-4, (0.9, 0.999), 0.01, 1.0
SUCCESSORS = 4
"""Tokens that may follow a token."""
NO_LABEL = -100
ALPHABET = 4096
"""Ids that occur at most: few enough that some hundred updates learn what follows each."""


@dataclass(frozen=True)
class Task:
    """GPT-2's architecture in some shape, next-token prediction; all numbers that contestants share."""

    name: str
    device: str
    num_devices: int | None
    """Where the command is not told; null: all GPUs."""
    layers: int
    heads: int
    width: int
    vocab_size: int
    context: int
    rows: int
    micro_batch: int
    """Rows a device and update."""
    precision: str
    """fp32 (tf32 on GPUs) or bf16 (mixed)."""
    compile: bool
    warmup: int
    steps: int
    log_every: int
    """Losses are means over so many updates; warmup and steps are multiples of it."""
    workers: int
    """Loader processes a device."""

    @property
    def updates(self) -> int:
        return self.warmup + self.steps


def read_task() -> tuple[Task, int, list[str]]:
    """What the command line says: the task, the number of devices, and the rest."""
    path, num_devices, *rest = sys.argv[1:]
    task = Task(**json.loads(Path(path).read_text()))
    if task.warmup % task.log_every or task.steps % task.log_every:
        sys.exit(f"{path}: warmup and steps must be multiples of log_every")
    torch.set_float32_matmul_precision("high")
    return task, int(num_devices), rest


class MarkovTokens(Dataset[dict[str, Tensor]]):
    """Rows of a random Markov chain: each token is followed by one of a few fixed others, so that it can be learned.

    The lowest loss is the logarithm of SUCCESSORS, 1.386. An item is `input_ids` and `labels`, int64 [context]; with
    `shifted`, labels[i] is the token after input_ids[i]. Else it is input_ids[i], as Hugging Face's models want it, but
    for the first, which they never use: Hugging Face's Trainer would count it.
    """

    def __init__(self, rows: int, context: int, vocab_size: int, *, shifted: bool = False, seed: int = 0) -> None:
        self.shifted = shifted
        generator = np.random.default_rng(seed)
        alphabet = min(ALPHABET, vocab_size)
        follows = generator.integers(0, alphabet, (alphabet, SUCCESSORS), dtype=np.int32)
        choice = generator.integers(0, SUCCESSORS, (context + 1, rows), dtype=np.int8)
        tokens = np.empty((context + 1, rows), dtype=np.int32)
        tokens[0] = generator.integers(0, alphabet, rows, dtype=np.int32)
        for place in range(context):
            tokens[place + 1] = follows[tokens[place], choice[place]]
        self.tokens = torch.from_numpy(np.ascontiguousarray(tokens.T))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.tokens[index].long()
        if self.shifted:
            return {"input_ids": row[:-1], "labels": row[1:]}
        labels = row[:-1].clone()
        labels[0] = NO_LABEL
        return {"input_ids": row[:-1], "labels": labels}


def rows_of(task: Task) -> MarkovTokens:
    return MarkovTokens(task.rows, task.context, task.vocab_size)


def loader_of(task: Task, rows: int, sampler: Sampler[int] | None = None) -> DataLoader[Any]:
    """In order; `rows` at a time, a multiple of the micro-batch for several devices."""
    workers = task.workers * (rows // task.micro_batch)
    return DataLoader(
        rows_of(task),
        rows,
        sampler=sampler,
        num_workers=workers,
        pin_memory=task.device == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
    )


def model_of(task: Task) -> Any:
    """Hugging Face's GPT-2 with random weights, the same in every process."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=task.vocab_size,
        n_positions=task.context,
        n_layer=task.layers,
        n_head=task.heads,
        n_embd=task.width,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    config._attn_implementation = "sdpa"
    return GPT2LMHeadModel(config)


def optimizer_of(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=task.device == "cuda"
    )


def synchronise() -> None:
    """Wait for all GPUs of this process: its own alone where there are others, for asking a GPU takes memory of it."""
    if not torch.cuda.is_initialized():
        return
    alone = int(os.environ.get("WORLD_SIZE", 1)) == 1
    for device in range(torch.cuda.device_count()) if alone else (torch.cuda.current_device(),):
        torch.cuda.synchronize(device)


class Meter:
    """Called once an update with its mean loss on this rank, or None; `finish` prints the line on rank 0.

    The GPU is waited for only where the measured part begins and ends; single updates are timed by events.
    """

    def __init__(self, task: Task, num_devices: int, name: str) -> None:
        self.task, self.num_devices, self.name = task, num_devices, name
        self.step = 0
        self.marks: list[Any] = []
        self.losses: list[Any] = [0.0, 0.0]
        self.began = self.ended = 0.0

    @property
    def done(self) -> bool:
        return self.step >= self.task.updates

    def __call__(self, loss: Tensor | None = None) -> None:
        task = self.task
        self.step += 1
        if loss is not None and self.step <= task.log_every:
            self.losses[0] = self.losses[0] + loss.detach().float() / task.log_every
        if loss is not None and self.step > task.updates - task.log_every:
            self.losses[1] = self.losses[1] + loss.detach().float() / task.log_every
        if self.step == task.warmup:
            synchronise()
            self.began = time.perf_counter()
        if self.step >= task.warmup:
            self._mark()
        if self.done and not self.ended:
            synchronise()
            self.ended = time.perf_counter()

    def _mark(self) -> None:
        if self.task.device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def finish(self, *packages: str, losses: tuple[float, float] | None = None) -> None:
        """Gather over the ranks and print. losses: over all ranks already, instead of what `__call__` was given."""
        mine = (*(losses or (float(self.losses[0]), float(self.losses[1]))), peak_memory())
        found = [mine]
        if dist.is_available() and dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, mine)
            found = gathered
        if int(os.environ.get("RANK", 0)):
            return
        first, last, peaks = zip(*found, strict=True)
        pairs = zip(self.marks, self.marks[1:], strict=False)
        cuda = self.task.device == "cuda"
        step_s = [a.elapsed_time(b) / 1000 if cuda else b - a for a, b in pairs]
        units = self.task.steps * self.task.micro_batch * self.task.context * self.num_devices
        line = {
            "name": self.name,
            "gpus": self.num_devices if cuda else 0,
            "devices": self.num_devices,
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "units_per_s": units / (self.ended - self.began),
            "step_s": step_s,
            "peak_memory_bytes": max(peaks),
            "losses": [sum(first) / len(first), sum(last) / len(last)],
            "versions": {package: version(package) for package in ("torch", *packages)},
        }
        print(json.dumps(line), flush=True)


def peak_memory() -> int:
    """Bytes: of tensors on this process's fullest GPU, or resident on the host without a GPU."""
    if torch.cuda.is_initialized():
        return max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
