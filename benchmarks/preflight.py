"""The micro-batch that the preflight chooses, against sizes set by hand: does it run, how fast, and how long it took.

    python benchmarks/preflight.py OUT.jsonl [--only eager compiled] [--tiny]

GPT-2 124M with context 1024 in bf16, 256 rows an update and GPU, 2 updates of warm-up and 4 measured; eager and
compiled whole, on one GPU, and eager under fsdp where there are two. A row with a size sets train.micro_batch and ends
where memory runs out (train.out_of_memory.recover: false); `auto` leaves it to the preflight. Bars: the chosen size is
at least half of the largest that runs by hand, and the rate at least 0.95 of the fastest by hand. With --tiny, on the
CPU, there is no preflight: it says whether the script works.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rows import Row, arguments, make_rows, medians, num_gpus, print_rates, print_ratio

HERE = str(Path(__file__).resolve())
SHARE, SIZES = 256, (256, 128, 64, 32)
SHAPE = {"kind": "decoder", "style": "gpt2", "num_layers": 12, "num_heads": 12, "width": 768}
TINY = {"kind": "decoder", "style": "gpt2", "num_layers": 2, "num_heads": 2, "width": 32}


def row(form: str, size: int | None, gpus: int, *, tiny: bool) -> Row:
    """size: None leaves it to the preflight."""
    share = 8 if tiny else SHARE
    spec = {
        "model": TINY if tiny else SHAPE,
        "vocab_size": 256 if tiny else 50304,
        "context": 32 if tiny else 1024,
        "rows": 8 * share * max(1, gpus),
        "data": "random",
        "warmup": 2,
        "steps": 4,
        "config": {
            "train": {
                "global_batch": share * max(1, gpus),
                "micro_batch": size or "auto",
                "out_of_memory": {"recover": size is None},
                "precision": "fp32" if tiny else "bf16",
                "compile": "whole" if form == "compiled" and not tiny else "none",
            },
            "parallel": {"kind": "fsdp" if form == "fsdp" else "auto"},
            "loader": {"num_workers": 0 if tiny else 2},
            "track": {"every": 2, "console": False},
            "hardware": {"device": "cpu" if tiny else "cuda"},
        },
    }
    name = f"{form} {size or 'auto'}"
    return Row(name, [HERE, "--one", json.dumps(spec)], 0 if tiny else gpus, max(1, gpus), 240)


def one(spec: dict[str, Any]) -> None:
    """One run, with what the preflight wrote of itself."""
    from one_run import measure

    from drumline.rundir import read_lines

    with tempfile.TemporaryDirectory() as scratch:
        line = measure(spec, Path(scratch))
        events = Path(scratch) / "run" / "events.jsonl"  # rank 0's; each rank has a folder of its own here
        found = read_lines(events) if events.exists() else []
    preflights = [event for event in found if event["event"] == "preflight"]
    line["preflight"] = preflights[0] if preflights else None
    line["recoveries"] = sum(event["event"] == "out_of_memory" for event in found)
    if "micro_batch" in line:  # only rank 0 has the plan
        print("RESULT " + json.dumps(line), flush=True)


def report(form: str, lines: Sequence[dict[str, Any]], sizes: Sequence[int]) -> None:
    """The chosen size beside those by hand."""
    by_name = {line["row"]: line for line in lines}
    chosen = by_name.get(f"{form} auto")
    running = [size for size in sizes if f"{form} {size}" in by_name]
    if chosen is None or not running:
        return
    found = chosen["preflight"]
    if found is None:
        print(f"{form}: no preflight on {chosen['device']}")
        return
    print(f"\n{form}: {found['message']}; {found['seconds']} s, {chosen['recoveries']} recoveries")
    print(f"  trials (rows, bytes): {found['training']['trials']}")
    print(f"  chosen {chosen['micro_batch']}; by hand these run: {running}")
    within = chosen["micro_batch"] >= max(running) / 2
    print(f"  within one halving of {max(running)}: {'yes' if within else 'NO'}")
    rates = medians(lines)
    best = max(running, key=lambda size: rates[f"{form} {size}"])
    print_ratio(rates, f"{form} auto", f"{form} {best}", 0.95)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        one(json.loads(sys.argv[2]))
        return
    asked = arguments(__doc__ or "")
    gpus = 0 if asked.tiny else num_gpus()
    forms = {"eager": min(1, gpus), "compiled": min(1, gpus), **({"fsdp": 2} if gpus >= 2 else {})}
    sizes = (8, 4) if asked.tiny else SIZES
    rows = [row(form, size, num, tiny=asked.tiny) for form, num in forms.items() for size in (None, *sizes)]
    lines = make_rows(asked, rows)
    print_rates(lines)
    for form in forms:
        report(form, lines, sizes)


if __name__ == "__main__":
    main()
