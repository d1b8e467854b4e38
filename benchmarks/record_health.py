"""Records what sound GPUs tell of their health while they idle, work and idle again, for the tests of the rules.

    python benchmarks/record_health.py --idle 20 --work 40 tests/unit/hardware/recorded/h100.jsonl

Each line is one look: the counters and the sample of every GPU, without processes, and UUIDs by number.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from drumline.hardware.health import look
from drumline.hardware.session import open_session


def main() -> None:
    """Record to the file that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds without work, before and after it")
    parser.add_argument("--work", type=float, default=40.0, help="seconds of matrix products on every GPU")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
    chosen = parser.parse_args()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with open_session() as session, chosen.out.open("w", encoding="utf-8") as file:

        def record(until: float, work: Callable[[], None] | None = None) -> None:
            while time.monotonic() < until:
                began = time.monotonic()
                facts, samples = look(session)
                text = json.dumps(
                    {
                        "facts": [asdict(one) for one in facts],
                        "samples": [asdict(replace(one, processes=None)) for one in samples],
                    }
                )
                for number, one in enumerate(facts):
                    text = text.replace(one.uuid, f"GPU-{number:08d}")
                file.write(f"{text}\n")
                while time.monotonic() < began + chosen.every:
                    work() if work else time.sleep(0.05)

        record(time.monotonic() + chosen.idle)
        record(time.monotonic() + chosen.work, products())
        record(time.monotonic() + chosen.idle)


def products() -> Callable[[], None]:
    """Some large matrix products on every visible GPU; returns when they are done."""
    pairs = [
        torch.randn(2, 8192, 8192, device=f"cuda:{n}", dtype=torch.bfloat16) for n in range(torch.cuda.device_count())
    ]

    def work() -> None:
        for pair in pairs:
            for _ in range(20):
                torch.mm(pair[0], pair[1])
        for pair in pairs:
            torch.cuda.synchronize(pair.device)

    return work


if __name__ == "__main__":
    main()
