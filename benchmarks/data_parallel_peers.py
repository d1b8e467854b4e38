"""data_parallel on all GPUs against one GPU (bar 1.85 on two) and against torch.nn.DataParallel (bar 3), in turn.

    PEERS=folder/of/data_parallel.py python benchmarks/data_parallel_peers.py OUT.jsonl [--rounds 2]

GPT-2 124M: Hugging Face's model, as the peer has it (hf), and the reference decoder. 32 rows of 1024 tokens a GPU.
Without PEERS the peer is benchmarks/peers/torch_data_parallel.py, the same loop.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rows import HERE, ONE_RUN, Row, arguments, make_rows, num_gpus, print_rates, print_ratio
from strategies import spec


def main() -> None:
    asked = arguments(__doc__ or "", rounds=2)
    gpus = 2 if asked.tiny else num_gpus()
    precision = "fp32" if asked.tiny else "bf16"

    def ours(model: str, kind: str, shown: int) -> list[str]:
        return [ONE_RUN, json.dumps(spec(model, precision, kind, shown, tiny=asked.tiny))]

    task = HERE / "peers" / "tasks" / ("tiny.json" if asked.tiny else "gpt2.json")
    peer = [str(HERE / "peers" / "torch_data_parallel.py"), str(task), str(gpus)]
    if "PEERS" in os.environ and not asked.tiny:
        peer = [str(Path(os.environ["PEERS"]) / "data_parallel.py")]
    shown, one = (0, 0) if asked.tiny else (gpus, 1)
    rows = [
        Row("hf data_parallel", ours("hf", "data_parallel", gpus), shown),
        Row("hf single", ours("hf", "single", 1), one),
        Row("torch DataParallel", peer, shown),
        Row("decoder data_parallel", ours("decoder", "data_parallel", gpus), shown),
        Row("decoder single", ours("decoder", "single", 1), one),
    ]
    rates = print_rates(make_rows(asked, rows))
    print_ratio(rates, "hf data_parallel", "hf single", 0.925 * gpus)
    print_ratio(rates, "decoder data_parallel", "decoder single", 0.925 * gpus)
    print_ratio(rates, "hf data_parallel", "torch DataParallel", 3.0)
    print_ratio(rates, "decoder data_parallel", "torch DataParallel", 3.0)


if __name__ == "__main__":
    main()
