"""float8 products against bf16 on one GPU: tokens/s (bar 1.15) and losses over 200 updates (within 1%).

`bf16 again` is the same run as bf16: the others' curves are to be held against how far its own two lie apart.

    python benchmarks/float8.py OUT.jsonl [--only bf16 float8] [--minutes 9]

Shape: SHAPE=wide (default), six of Llama-3.1-8B's layers with 32,768 tokens, 1.6 billion parameters; SHAPE=1b,
Llama-3.2-1B's sixteen layers of width 2048. LR is the rate, 1e-4 unless told: with it bf16's own loss jumps once. Rows
are a Markov chain's, the same for all, so that the losses fall.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rows import ONE_RUN, Row, arguments, make_rows, print_rates, print_ratio

SHAPES: dict[str, dict[str, Any]] = {
    "wide": {"num_layers": 6, "num_heads": 32, "num_kv_heads": 8, "width": 4096, "mlp_width": 14336},
    "1b": {"num_layers": 16, "num_heads": 32, "num_kv_heads": 8, "width": 2048, "mlp_width": 8192},
    "tiny": {"num_layers": 2, "num_heads": 2, "width": 32},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "bf16 again": {},
    "float8": {"linear": {"products": "float8"}},
    "float8_rowwise": {"linear": {"products": "float8_rowwise"}},
}


def command(shape: str, variant: str) -> list[str]:
    tiny = shape == "tiny"
    spec = {
        "model": {"kind": "decoder", "style": "llama", "tie_embeddings": False, **SHAPES[shape]},
        "vocab_size": 256 if tiny else 32768,
        "context": 32 if tiny else 2048,
        "rows": 1024 if tiny else 2048,
        "warmup": 40,
        "steps": 160,
        "config": {
            "train": {
                "global_batch": 4 if tiny else 8,
                "lr": float(os.environ.get("LR", 1e-4)),
                "schedule": {"name": "constant", "warmup_steps": 20},
                "precision": "fp32" if tiny else "bf16",
                "compile": "none" if tiny else os.environ.get("COMPILE", "whole"),
                **VARIANTS[variant],
            },
            "parallel": {"kind": "single"},
            "loader": {"num_workers": 0 if tiny else 2},
            "track": {"every": 10, "console": False},
            "hardware": {"device": "cpu" if tiny else "cuda"},
        },
    }
    return [ONE_RUN, json.dumps(spec)]


def compare(base: list[list[float]], other: list[list[float]]) -> tuple[float, int]:
    """The largest relative distance of two loss curves, and its update."""
    pairs = ((abs(b[1] - a[1]) / a[1], int(a[0])) for a, b in zip(base, other, strict=True))
    return max(pairs)


def main() -> None:
    asked = arguments(__doc__ or "")
    shape = "tiny" if asked.tiny else os.environ.get("SHAPE", "wide")
    variants = ["bf16"] if asked.tiny else list(VARIANTS)
    lines = make_rows(
        asked, [Row(f"{shape} {name}", command(shape, name), 0 if asked.tiny else 1) for name in variants]
    )
    rates = print_rates(lines)
    losses = {line["row"]: line["losses"] for line in lines}
    for line in lines:
        billions = line["num_parameters"] / 1e9
        memory = line["peak_memory_bytes"] / 2**30
        print(f"{line['row']}: {billions:.2f} billion parameters, {memory:.1f} GiB, MFU {line.get('mfu')}")
    if not lines:
        return
    print("\n| updates | " + " | ".join(losses) + " |\n|---|" + "---:|" * len(losses))
    for places in zip(*losses.values(), strict=True):
        print(f"| {places[0][0] - 9}-{places[0][0]} | " + " | ".join(f"{loss:.4f}" for _, loss in places) + " |")
    base = f"{shape} bf16"
    for name in variants[1:]:
        row = f"{shape} {name}"
        if not row.startswith(base):
            print_ratio(rates, row, base, 1.15)
        if row in losses and base in losses:
            distance, step = compare(losses[base], losses[row])
            print(f"losses of {row}: at most {100 * distance:.2f}% from bf16's, at update {step} (bar 1%)")


if __name__ == "__main__":
    main()
