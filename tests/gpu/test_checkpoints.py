"""Asynchronous saves from a GPU: what is written is the state of the save, from memory that is used again."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drumline import StepInfo, Trainer
from drumline.engine.checkpoint import read_checkpoint
from drumline.engine.checkpoint_host import HostCopies
from tests.unit.engine.training import assert_same, losses, trainer_of

pytestmark = pytest.mark.gpu

CUDA: dict[str, Any] = {
    "hardware": {"device": "cuda"},
    "parallel": {"kind": "single"},
    "train": {"epochs": 3, "global_batch": 5, "optimizer": {"name": "adamw"}, "precision": "fp32"},
}


@pytest.mark.parametrize("form", ["whole", "sharded"])
def test_training_goes_on_while_a_slow_write_is_under_way(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, weights = threading.Event(), dict[int, dict[str, Tensor]]()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert goes_on.wait(20)
        fsync(descriptor)

    def watch(trainer: Trainer, info: StepInfo) -> None:
        weights[info.step] = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
        if info.step == 5:
            goes_on.set()

    monkeypatch.setattr(os, "fsync", slow)
    checkpoint = {"every": 3, "format": form}
    with trainer_of(tmp_path / "run", checkpoint=checkpoint, callbacks=[watch], **CUDA) as trainer:
        infos = list(trainer.steps())
    assert len(infos) == 6
    for step in (3, 6):
        found = read_checkpoint(tmp_path / "run" / "checkpoints" / f"step_{step}")["strategy"]
        assert_same(found["model"], weights[step])
        kept = found["learners"]["main"]["optimizer"]["state"][0]
        assert kept["exp_avg"].device.type == "cpu"
    with trainer_of(tmp_path / "again", **CUDA) as resumed:
        resumed.load(tmp_path / "run" / "checkpoints" / "step_3")
        assert losses(list(resumed.steps())) == losses(infos)[3:]


def test_copies_are_page_locked_and_use_the_same_memory_again() -> None:
    state = {"a": torch.randn(1000, 3, device="cuda"), "b": torch.randn(7, device="cuda").half(), "c": torch.ones(2)}
    image = torch.randn(2, 3, 4, 5, device="cuda").contiguous(memory_format=torch.channels_last)
    copies = HostCopies()
    first = copies.copy({**state, "image": image})
    assert first["a"].is_pinned() and first["b"].is_pinned()
    pointers = {name: value.data_ptr() for name, value in first.items() if name != "c"}
    for name, value in {**state, "image": image}.items():
        assert torch.equal(first[name], value.cpu())
    assert first["image"].stride() == image.stride()
    state["a"].zero_()
    second = copies.copy({**state, "image": image})
    assert {name: value.data_ptr() for name, value in second.items() if name != "c"} == pointers
    assert not second["a"].any()
