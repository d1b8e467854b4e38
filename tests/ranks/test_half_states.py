"""Moments in half precision on several ranks: whole or sharded, they round as those of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drumline import Trainer
from tests.rank_pool import RankPool
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model


def losses_of(directories: list[str], kind: str, half: str) -> list[float]:
    """Of six updates; with two directories the last three are another trainer's, which goes on from a checkpoint."""
    train = {"global_batch": 8, "max_steps": 6, "lr": 0.01, "optimizer": {"name": "adamw", "state_precision": half}}
    losses: list[float] = []
    saved: Path | None = None
    for directory in directories:
        config = config_of(Case(directory, {"train": train, "parallel": {"kind": kind, "timeout_s": 20}}))
        with Trainer(make_model(), config, MaskedRows(37), loss=MaskedRegression([])) as trainer:
            if saved is not None:
                trainer.load(saved)
            for info in trainer.steps():
                assert info.logged is not None
                losses.append(info.logged["loss"])
                if len(losses) == 3 and len(directories) == 2:
                    saved = trainer.save()
                    break
    return losses


@pytest.mark.parametrize("half", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_they_round_as_in_one_process(ranks: RankPool, tmp_path: Path, kind: str, half: str) -> None:
    (one,) = ranks.run(1, losses_of, [fresh(tmp_path)], "auto", half)
    seen, other = ranks.run(2, losses_of, [fresh(tmp_path)], kind, half)
    assert seen == other
    torch.testing.assert_close(seen, one, rtol=0, atol=1e-10)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_they_are_saved_and_loaded_bit_for_bit(ranks: RankPool, tmp_path: Path, kind: str, half: str) -> None:
    through, _ = ranks.run(2, losses_of, [fresh(tmp_path)], kind, half)
    resumed, _ = ranks.run(2, losses_of, [str(tmp_path / "first"), str(tmp_path / "second")], kind, half)
    assert resumed == through
