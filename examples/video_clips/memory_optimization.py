"""Less memory for the same update: passes over fewer clips, and blocks that are computed again instead of kept.

python examples/video_clips/memory_optimization.py
"""

from __future__ import annotations

from typing import Any

from clips import create_datasets, create_model, loss, parse, peaks

from drumline import RunConfig, TrainConfig, benchmark_multi_gpu_performance

WAYS: dict[str, dict[str, Any]] = {
    "passes of 16": {"micro_batch": 16},
    "checkpointing": {"checkpointing": {"kind": "full"}},
    "whole batch": {},
}
"""By name, fields of TrainConfig; the most memory last, as on a CPU the peak is the process's and never falls."""


def measure(small: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """Some updates of one way; on GPUs the precision `auto` halves what is kept, in all of them."""
    batch = 256 if small else 2048
    train = TrainConfig(global_batch=batch, max_steps=3, **{"micro_batch": batch, **settings})
    config = RunConfig.model_validate({"train": train, "parallel": {"kind": "single"}})
    return benchmark_multi_gpu_performance(create_model(), create_datasets(small)[0], config, loss=loss)


if __name__ == "__main__":
    options = parse(__doc__)
    for name, settings in WAYS.items():
        found = measure(options.small, settings)
        [peak] = peaks(found).values()
        print(f"{name:<14} peak {peak:5d} MiB, {found['samples_per_second']:6.0f} clips/s", flush=True)
