"""A rank that hangs while the GPUs of the others wait for it. Run: pytest -m gpu."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

import drumline
from drumline import DrumlineError, StepInfo, Trainer
from drumline.rundir import read_lines
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model

pytestmark = pytest.mark.gpu


def sleep_on_the_last_rank(trainer: Trainer, info: StepInfo) -> None:
    if info.step == 3 and trainer.world.rank == trainer.world.size - 1:
        time.sleep(100)


def train_and_hang(directory: str) -> None:
    config = {"train": {"global_batch": 16, "max_steps": 10}, "faults": {"hang_timeout_s": 20.0}}
    with Trainer(
        make_model(),
        config_of(Case(directory, config)),
        MaskedRows(64),
        loss=MaskedRegression([]),
        callbacks=[sleep_on_the_last_rank],
    ) as trainer:
        trainer.fit()


def test_the_report_names_the_rank_and_the_collective_that_waits(tmp_path: Path) -> None:
    directory = fresh(tmp_path)
    with pytest.raises(DrumlineError) as caught:
        drumline.launch(train_and_hang, (directory,), run_dir=tmp_path / "launch")
    assert caught.value.code == "hang"
    (event,) = [record for record in read_lines(Path(directory) / "events.jsonl") if record["event"] == "hang"]
    last = torch.cuda.device_count() - 1
    assert event["missing"] == [last] and event["arrived"] == list(range(last))
    assert f"rank {last} is in a callback: callbacks after update 3, step 3" in event["message"]
    assert "test_hang.py:" in event["message"]
    if last:
        assert any("nccl:" in line for rank in event["ranks"][:last] for line in rank["pending"])
