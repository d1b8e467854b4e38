"""Several processes on real GPUs: as many as there are, one each. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

import drumline
from drumline.launcher.world import World
from drumline.parallel.groups import bind_devices
from tests.gpu.cases import make_normed_model, meet_on_one_gpu
from tests.ranks.training import Case, fresh, largest_difference, train

pytestmark = pytest.mark.gpu


def test_every_gpu_together_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    config: dict[str, Any] = {"train": {"global_batch": 8, "max_steps": 10, "micro_batch": 2, "max_norm": 0.5}}
    reference = train(Case(fresh(tmp_path), config | {"hardware": {"device": "cpu"}}))
    records = drumline.launch(train, (Case(fresh(tmp_path), config),))
    assert len(records) == torch.cuda.device_count()
    for record in records:
        torch.testing.assert_close(record.losses, reference.losses, rtol=0, atol=1e-10)
        weights = {name: value.cpu() for name, value in record.weights.items()}
        assert largest_difference(weights, reference.weights) < 1e-10


def test_sync_batch_norm_sees_every_sample(tmp_path: Path) -> None:
    config: dict[str, Any] = {"train": {"global_batch": 8, "max_steps": 4}}
    reference = train(Case(fresh(tmp_path), config | {"hardware": {"device": "cpu"}}, num_rows=32), make_normed_model)
    synced = config | {"parallel": {"kind": "ddp", "sync_batch_norm": True, "timeout_s": 30}}
    for record in drumline.launch(train, (Case(fresh(tmp_path), synced, num_rows=32), make_normed_model)):
        torch.testing.assert_close(record.losses, reference.losses, rtol=0, atol=1e-6)
        weights = {name: value.cpu().double() for name, value in record.weights.items()}
        expected = {name: value.double() for name, value in reference.weights.items()}
        assert largest_difference(weights, expected) < 1e-6


@pytest.mark.parametrize(("backend", "answer"), [("nccl", "backend: nccl failed its check"), ("gloo", "met")])
def test_nccl_that_cannot_work_is_told_and_gloo_offered(tmp_path: Path, backend: str, answer: str) -> None:
    torch.multiprocessing.spawn(meet_on_one_gpu, args=(str(tmp_path), backend), nprocs=2)
    for rank in (0, 1):
        found = (tmp_path / f"answer-{rank}").read_text()
        assert found.startswith(answer)
        assert backend == "gloo" or "set parallel.backend=gloo" in found


def test_memory_fraction_caps_the_allocator() -> None:
    (device,) = bind_devices(World(), (0,), memory_fraction=0.05)
    try:
        tenth = torch.cuda.get_device_properties(device).total_memory // 10
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(tenth, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
