"""Unlike GPUs: DDP with equal shares and with `balance: measured`, while something else keeps the last GPU busy.

    python benchmarks/balance.py OUT.jsonl [--rounds 2] [--tiny]

GPT-2 124M's shape in bf16, 64 rows of 1024 tokens an update and GPU, compiled whole. On the last GPU a process of its
own multiplies matrices all the time, as a stranger's training would; the rows take turns beside it. With --tiny the
GPUs are two CPU processes, whose shares stay equal unless the machine makes them differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rows import ONE_RUN, Row, arguments, environment, make_rows, num_gpus, print_rates, print_ratio

STRANGER = """
import torch
with torch.inference_mode():
    a = torch.randn({size}, {size}, device="{device}", dtype=torch.bfloat16)
    print("busy", flush=True)
    while True:
        a @ a
        if "{device}" == "cuda":
            torch.cuda.synchronize()
"""
KINDS = ("equal", "measured")


def row(balance: str, gpus: int, *, tiny: bool) -> Row:
    """One kind of shares."""
    decoder = {"kind": "decoder", "style": "gpt2", "num_layers": 12, "num_heads": 12, "width": 768}
    small = {"num_layers": 2, "num_heads": 2, "width": 32}
    spec: dict[str, Any] = {
        "model": {**decoder, **(small if tiny else {})},
        "vocab_size": 256 if tiny else 50304,
        "context": 32 if tiny else 1024,
        "rows": 512 if tiny else 8192,
        "data": "random",
        "warmup": 10,
        "steps": 20,
        "config": {
            # As passes of 16 rows: a share that is no multiple of a pass has a shorter one.
            "train": {"global_batch": (4 if tiny else 64) * gpus, "micro_batch": 2 if tiny else 16, "lr": 6e-4}
            | {"precision": "bf16", "compile": "none" if tiny else "whole"},
            "parallel": {"kind": "ddp", "balance": balance},
            "loader": {"num_workers": 0 if tiny else 2},
            "track": {"every": 10, "console": False},
            "hardware": {"device": "cpu" if tiny else "cuda", "taken": "use"},
        },
    }
    return Row(balance, [ONE_RUN, json.dumps(spec)], 0 if tiny else gpus, gpus)


@contextmanager
def stranger(beside: Row, *, tiny: bool) -> Iterator[None]:
    """Inside, the last GPU is busy."""
    shown = environment(beside)
    device = "cpu" if tiny else "cuda"
    shown["CUDA_VISIBLE_DEVICES"] = shown["CUDA_VISIBLE_DEVICES"].rpartition(",")[2]
    code = STRANGER.format(size=256 if tiny else 4096, device=device)
    child = subprocess.Popen([sys.executable, "-c", code], env=shown, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "busy":
            sys.exit("the process that keeps the last GPU busy did not start")
        yield
    finally:
        child.kill()
        child.wait()


def main() -> None:
    asked = arguments(__doc__ or "")
    gpus = 2 if asked.tiny else num_gpus()
    rows = [row(balance, gpus, tiny=asked.tiny) for balance in KINDS]
    with stranger(rows[0], tiny=asked.tiny):
        lines = make_rows(asked, rows)
    print_ratio(print_rates(lines), "measured", "equal", 1.0)


if __name__ == "__main__":
    main()
