"""Recipe gpt2_124m under ddp on one GPU and on all (bar 97% of linear), and the hand-written loop (bar 1.12 of it).

    PEERS=folder/of/raw_ddp.py python benchmarks/ddp_scaling.py OUT.jsonl [--rounds 3]

Without PEERS the loop is benchmarks/peers/ddp_by_hand.py, written alike.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rows import HERE, ONE_RUN, Row, arguments, make_rows, num_gpus, print_rates, print_ratio

FORMS = {
    "uncut": "parallel={kind: ddp, cut_graphs: false, bucket_mb: 25}",
    "cut at 160 MiB": "parallel={kind: ddp, cut_graphs: true, bucket_mb: 160}",
    "uncut, bf16 on the wire": "parallel={kind: ddp, cut_graphs: false, compression: bf16}",
}
SMALL = ["model.num_layers=2", "model.num_heads=2", "model.width=32", "train.compile=none", "hardware.device=cpu"]


def recipe(gpus: int, *more: str, tiny: bool, rows: int = 32) -> list[str]:
    """The recipe on random tokens, so many rows a GPU and update."""
    context, vocab_size, rows = (32, 256, rows // 8) if tiny else (1024, 50304, rows)
    spec: dict[str, Any] = {"recipe": "gpt2_124m", "context": context, "warmup": 15, "steps": 40}
    spec["overrides"] = [
        f"data={{kind: random_tokens, num_rows: 8192, context: {context}, vocab_size: {vocab_size}}}",
        f"train.global_batch={rows * gpus}",
        f"loader.num_workers={0 if tiny else 2}",
        *more,
        *(SMALL if tiny else ()),
    ]
    return [ONE_RUN, json.dumps(spec)]


def by_hand(gpus: int, *, tiny: bool) -> list[str]:
    """The peers' script, or on the CPU our own loop, which is written alike."""
    if "PEERS" in os.environ and not tiny:
        return [str(Path(os.environ["PEERS"]) / "raw_ddp.py")]
    task = HERE / "peers" / "tasks" / ("tiny.json" if tiny else "gpt2.json")
    return [str(HERE / "peers" / "ddp_by_hand.py"), str(task), str(gpus)]


def main() -> None:
    asked = arguments(__doc__ or "", rounds=3)
    tiny = asked.tiny
    gpus = 2 if tiny else num_gpus()
    shown, one = (0, 0) if tiny else (gpus, 1)
    rows = [
        Row(f"recipe on {gpus}", recipe(gpus, tiny=tiny), shown, gpus),
        Row("recipe on 1", recipe(1, tiny=tiny), one),
        Row(f"recipe, 64 rows, on {gpus}", recipe(gpus, tiny=tiny, rows=64), shown, gpus),
        Row("recipe, 64 rows, on 1", recipe(1, tiny=tiny, rows=64), one),
        *(
            Row(f"recipe, {name}, on {gpus}", recipe(gpus, form, tiny=tiny), shown, gpus)
            for name, form in FORMS.items()
        ),
        Row(f"raw torch DDP on {gpus}", by_hand(gpus, tiny=tiny), shown, gpus),
        Row("raw torch DDP on 1", by_hand(1, tiny=tiny), one),
    ]
    rows = list({row.name: row for row in rows}.values())  # on one GPU, "on all" is "on 1"
    rates = print_rates(make_rows(asked, rows))
    print_ratio(rates, f"recipe on {gpus}", "recipe on 1", 0.97, factor=1 / gpus)
    print_ratio(rates, f"recipe, 64 rows, on {gpus}", "recipe, 64 rows, on 1", 0.97, factor=1 / gpus)
    for name in FORMS:
        print_ratio(rates, f"recipe, {name}, on {gpus}", "recipe on 1", 0.97, factor=1 / gpus)
    print_ratio(rates, f"raw torch DDP on {gpus}", "raw torch DDP on 1", 0.97, factor=1 / gpus)
    for name in ("recipe", "recipe, 64 rows,"):
        print_ratio(rates, f"{name} on {gpus}", f"raw torch DDP on {gpus}", 1.12)


if __name__ == "__main__":
    main()
