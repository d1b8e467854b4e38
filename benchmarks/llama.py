"""fsdp on Llama-3.1-8B's layers, as many as fill two 80 GB cards, against hand-written FSDP2 and accelerate's.

    PEERS=folder/of/llama8b.py python benchmarks/llama.py OUT.jsonl [--only ours raw accelerate]

The task of PEERS/llama8b.py: context 8192, one row a GPU and update, bf16 products, float32 weights and AdamW state in
shards, every layer recomputed in the backward pass, compiled by layers, clipping at 1.0, 6 updates of warm-up and 12
measured. LAYERS (default 28) is for two cards of 80 GB: 16 bytes a parameter over two are 53 GiB, the rest is for
activations. Bars: 1.0 of raw, 1.15 of accelerate. Rows with `chunked` never hold all logits; `selective` recomputes
every second layer only, for which that makes room.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rows import ONE_RUN, Row, arguments, make_rows, num_gpus, print_rates, print_ratio

LAYERS = int(os.environ.get("LAYERS", 28))
VOCAB, CONTEXT = 128256, 8192
SHAPE = {"kind": "decoder", "style": "llama", "num_layers": LAYERS, "num_heads": 32, "num_kv_heads": 8, "width": 4096,
         "mlp_width": 14336, "tie_embeddings": False, "vocab_size": VOCAB}  # fmt: skip
TINY = {"kind": "decoder", "style": "llama", "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "width": 32,
        "tie_embeddings": False}  # fmt: skip


def ours(gpus: int, checkpointing: dict[str, Any], *, tiny: bool, chunked: bool = False) -> list[str]:
    spec = {
        "chunked_loss": chunked,
        "model": TINY if tiny else SHAPE,
        "vocab_size": 256 if tiny else VOCAB,
        "context": 32 if tiny else CONTEXT,
        "rows": 256,
        "data": "random",
        "meta": True,
        "warmup": 6,
        "steps": 12,
        "config": {
            "train": {
                "global_batch": gpus,
                "lr": 1e-5,
                "precision": "fp32" if tiny else "bf16",
                "compile": "none" if tiny else "blocks",
                "checkpointing": checkpointing,
                "optimizer": {"betas": [0.9, 0.999], "weight_decay": 0.01, "decay_all": True},
            },
            "parallel": {"kind": "fsdp"},
            "loader": {"num_workers": 0 if tiny else 2},
            "track": {"every": 6, "console": False},
            "hardware": {"device": "cpu" if tiny else "cuda"},
        },
    }
    return [ONE_RUN, json.dumps(spec)]


def main() -> None:
    asked = arguments(__doc__ or "")
    tiny = asked.tiny
    gpus = 2 if tiny else num_gpus()
    shown = 0 if tiny else gpus
    rows = [Row("ours full", ours(gpus, {"kind": "full"}, tiny=tiny), shown, gpus, 400)]
    if "PEERS" not in os.environ:
        print("PEERS is not set: raw and accelerate do not run")
    elif not tiny:
        peer = [str(Path(os.environ["PEERS"]) / "llama8b.py")]
        for name in ("raw", "accelerate"):
            environ = {"PEER": name, "LAYERS": str(LAYERS), "CONTEXT": str(CONTEXT), "AC": "full"}
            rows.append(Row(f"{name} full", peer, gpus, gpus, 400, environ))
    chunked = ours(gpus, {"kind": "full"}, tiny=tiny, chunked=True)
    selective = ours(gpus, {"kind": "selective", "every": 2}, tiny=tiny, chunked=True)
    rows.append(Row("ours full chunked", chunked, shown, gpus, 400))
    rows.append(Row("ours selective chunked", selective, shown, gpus, 400))
    lines = make_rows(asked, rows)
    rates = print_rates(lines)
    for line in lines:
        memory = line.get("peak_gib") or line["peak_memory_bytes"] / 2**30
        print(f"{line['row']}: {memory:.1f} GiB at most")
    for name in ("ours full", "ours full chunked", "ours selective chunked"):
        print_ratio(rates, name, "raw full", 1.0)
        print_ratio(rates, name, "accelerate full", 1.15)


if __name__ == "__main__":
    main()
