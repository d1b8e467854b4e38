"""How fast each strategy of one process trains here; the model stays as it is.

python examples/video_clips/benchmark.py
"""

from __future__ import annotations

import torch
from clips import create_datasets, create_model, parse, peaks

from drumline.adapters.opus_clip import MultiGPUConfig, benchmark_multi_gpu_performance


def main(small: bool) -> None:
    """A line a strategy."""
    train, _ = create_datasets(small)
    batch = 16 if small else 256
    replicas = None if torch.cuda.is_available() else 2
    configs = (
        MultiGPUConfig("single", batch_size=batch, num_workers=0),
        MultiGPUConfig("dataparallel", replicas, batch_size=batch, num_workers=0),
    )
    print(f"{'strategy':<14}{'clips/s':>9}{'forward':>10}{'backward':>10}{'optimizer':>11}  peak memory")
    for config in configs:
        found = benchmark_multi_gpu_performance(create_model(), train, config)
        forward, backward, optimizer = (found[f"{phase}_time"] * 1000 for phase in ("forward", "backward", "optimizer"))
        memory = ", ".join(f"{name} {size} MiB" for name, size in peaks(found).items())
        times = f"{forward:7.1f} ms{backward:7.1f} ms{optimizer:8.1f} ms"
        print(f"{config.strategy:<14}{found['samples_per_second']:9.0f}{times}  {memory}")


if __name__ == "__main__":
    main(parse(__doc__).small)
