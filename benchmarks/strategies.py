"""GPU use, memory, speed and losses by strategy and precision: GPT-2 124M's shape on tokens that can be learned.

    python benchmarks/strategies.py OUT.jsonl [--only PART ...] [--minutes 9]

Every row is 20 updates of warm-up and 30 measured, 32 rows of 1024 tokens a GPU and update, compiled (fsdp: by blocks).
Prints a Markdown table. A row of one GPU has the losses of its own, smaller batch: compare losses within a number of
GPUs. They are of the first 30 updates, after which the rate makes each run's loss jump once.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rows import ONE_RUN, Row, arguments, make_rows, num_gpus, rate_of

DECODER = {"kind": "decoder", "style": "gpt2", "num_layers": 12, "num_heads": 12, "width": 768}
HF = {"kind": "hf_gpt2", "layers": 12, "heads": 12, "width": 768}
TINY = {"kind": "decoder", "style": "gpt2", "num_layers": 2, "num_heads": 2, "width": 32}
TINY_HF = {"kind": "hf_gpt2", "layers": 2, "heads": 2, "width": 32}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "float8": {"precision": "bf16", "linear": {"products": "float8"}},
    "float8_rowwise": {"precision": "bf16", "linear": {"products": "float8_rowwise"}},
}
# The most telling ones first, for a call that is cut off.
WANTED = [
    *[("decoder", precision, kind) for precision in ("bf16", "float8", "tf32") for kind in
      ("single", "data_parallel", "ddp", "fsdp")],
    ("hf", "bf16", "single"), ("hf", "bf16", "data_parallel"), ("hf", "bf16", "ddp"), ("hf", "bf16", "fsdp"),
    ("decoder", "fp32", "single"), ("decoder", "float8_rowwise", "single"),
]  # fmt: skip
KINDS = {"single": "one process, one GPU", "data_parallel": "one process", "ddp": "a process a GPU", "fsdp": "the same"}


def spec(model: str, precision: str, kind: str, gpus: int, *, tiny: bool) -> dict[str, Any]:
    """What one_run.py is told."""
    compiled = "none" if tiny else "blocks" if kind == "fsdp" else "whole"
    shards = 1 if kind == "single" else gpus
    parallel: dict[str, Any] = {"kind": kind}
    if kind == "data_parallel":
        parallel["bucket_mb"] = float(os.environ.get("BUCKET_MB", 64))
    if tiny and kind == "data_parallel":
        parallel["replicas"] = gpus
    shapes = (TINY, TINY_HF) if tiny else (DECODER, HF)
    return {
        "model": shapes[model == "hf"],
        "vocab_size": 256 if tiny else 50304,
        "context": 32 if tiny else 1024,
        "rows": 512 if tiny else 8192,
        "warmup": 20,
        "steps": 30,
        "config": {
            "train": {"global_batch": (4 if tiny else 32) * shards, "lr": 6e-4, "compile": compiled,
                      **PRECISIONS[precision]},
            "parallel": parallel,
            # As many a GPU, whoever reads for it.
            "loader": {"num_workers": 0 if tiny else 2 * gpus if kind == "data_parallel" else 2},
            "track": {"every": 10, "console": False},
            "hardware": {"device": "cpu" if tiny else "cuda"},
        },
    }  # fmt: skip


def rows(gpus: int, *, tiny: bool) -> list[Row]:
    found = []
    for model, precision, kind in WANTED:
        if tiny and precision not in ("fp32", "bf16"):
            continue
        processes = gpus if kind in ("ddp", "fsdp") else 1
        text = json.dumps(spec(model, precision, kind, gpus, tiny=tiny))
        shown = 0 if tiny else 1 if kind == "single" else gpus
        found.append(Row(f"{model}/{precision}/{kind}", [ONE_RUN, text], shown, processes))
    return found


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown; shares are of the time or of the peak, memory is of the fullest GPU."""
    header = (
        "model | precision | strategy | GPUs | tokens/s | MFU (bf16 peak) | SM active | tensor cores active | "
        "peak GiB | first update s | loss 1-10 | 11-20 | 21-30"
    )
    out = [f"| {header} |", "|---|---|---|" + "---:|" * 10]
    for line in lines:
        model, precision, kind = line["row"].split("/")
        losses = [loss for _, loss in line["losses"]]
        shares = [percent(line.get(name)) for name in ("mfu", "sm_active", "tensor_active")]
        memory = f"{line['peak_memory_bytes'] / 2**30:.1f}"
        cells = [model, precision, kind, str(line["gpus"]), f"{rate_of(line):,.0f}", *shares, memory]
        cells += [f"{line['first_step_s']:.0f}", *(f"{losses[index]:.4f}" for index in range(3))]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def main() -> None:
    asked = arguments(__doc__ or "")
    gpus = 2 if asked.tiny else num_gpus()
    lines = make_rows(asked, rows(gpus, tiny=asked.tiny))
    if lines:
        print(f"\n{lines[0]['device']}, torch {lines[0]['torch']}\n")
    print(table(lines))


if __name__ == "__main__":
    main()
