"""Case 15: each rank is on its own GPU only, also after a checkpoint was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import drumline
from tests.gpu.own_gpu import processes_by_gpu, train_twice

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_process_a_gpu_after_a_resume(kind: str, tmp_path: Path) -> None:
    several = torch.cuda.device_count() > 1
    config: dict[str, Any] = {
        "train": {"global_batch": 8, "max_steps": 3},
        "parallel": {"kind": kind if several else "single", "timeout_s": 60},
        "checkpoint": {"every": 2, "at_end": True},
    }
    before = processes_by_gpu()
    found = drumline.launch(train_twice, (str(tmp_path / "run"), config))
    counts, steps = found[0]
    assert steps == 5
    # Processes in a container may have other numbers there than NVML's, so they are counted.
    new = sorted(counts[uuid] - before[uuid] for uuid in counts)
    assert new == [0] * (len(new) - len(found)) + [1] * len(found)
