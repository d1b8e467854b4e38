"""A failure on one rank ends all of them in seconds: its own exception there, its message on the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import StepInfo, Trainer
from drumline.config.model import DecoderModel
from drumline.models.decoder import decoder_from_config
from drumline.parallel.strategy import Batch
from drumline.rundir import read_json
from tests.rank_pool import RankPool
from tests.ranks.failing import failures_of
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, make_model, train

CONFIG = {"train": {"global_batch": 8, "max_steps": 5, "shuffle": False}}


class Broken(ValueError):
    """What the tests raise; it needs two arguments, so that nobody can build it again from its text."""

    def __init__(self, place: str, rank: int) -> None:
        super().__init__(f"broken in {place} on rank {rank}")


@dataclass(frozen=True)
class Fault:
    """Where the run breaks, and on which rank."""

    directory: str
    place: str
    rank: int
    num_workers: int = 0


class FaultyTask(MaskedRegression):
    """Breaks in the third call of the loss on the faulty rank."""

    def __init__(self, fault: Fault) -> None:
        super().__init__([])
        self._fault = fault
        self._calls = 0

    def loss(self, outputs: Tensor, batch: Batch) -> Any:
        self._calls += 1
        training = torch.is_grad_enabled()
        if self._fault.place == ("loss" if training else "evaluation") and (self._calls == 3 or not training):
            break_here(self._fault, self._fault.place)
        return super().loss(outputs, batch)


class FaultyRows(MaskedRows):
    """Breaks at the first row of a rank's share of the second update."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(40)
        self._fault = fault

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self._fault.place == "rows" and index == 8 + 4 * self._fault.rank:
            raise Broken("rows", self._fault.rank)
        return super().__getitem__(index)


def break_here(fault: Fault, place: str) -> None:
    if fault.place == place and dist.get_rank() == fault.rank:
        raise Broken(place, fault.rank)


def run_faulty(fault: Fault) -> None:
    """Everything that a run calls of a user's, in turn."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        break_here(fault, "optimizer")
        return torch.optim.SGD(model.parameters(), 0.1)

    def callback(trainer: Trainer, info: StepInfo) -> None:
        if info.step == 2:
            break_here(fault, "callback")

    sections = {"loader": {"num_workers": fault.num_workers}, "evaluate": {"every": 2}}
    with Trainer(
        make_model(),
        config_of(Case(fault.directory, CONFIG), **sections),
        FaultyRows(fault),
        loss=FaultyTask(fault),
        eval_data=MaskedRows(8),
        optimizer=make,
        callbacks=[callback],
    ) as trainer:
        for info in trainer.steps():
            if info.step == 2:
                break_here(fault, "body")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["optimizer", "loss", "rows", "evaluation", "callback", "body"])
def test_one_rank_fails_and_the_other_says_why(ranks: RankPool, tmp_path: Path, place: str, rank: int) -> None:
    fault = Fault(fresh(tmp_path), place, rank)
    errors = failures_of(ranks, 2, run_faulty, fault)
    assert errors[rank] == ("Broken", f"broken in {place} on rank {rank}")
    name, message = errors[1 - rank]
    assert name == "PeerFailed"
    assert message.startswith(f"rank {rank} failed: Broken: broken in {place} on rank {rank} ({__file__}:")
    if place != "optimizer":  # then the run has not begun
        end = read_json(Path(fault.directory) / "exit.json")
        assert (end["exit_status"], end["reason"]) == (1, "failed")
        assert f"broken in {place} on rank {rank}" in end["message"]


def test_the_pool_goes_on_after_a_failure(ranks: RankPool, tmp_path: Path) -> None:
    failures_of(ranks, 2, run_faulty, Fault(fresh(tmp_path), "loss", 1))
    first, second = ranks.run(2, train, Case(fresh(tmp_path), CONFIG))
    assert len(first.losses) == 5 and first.losses == second.losses


@pytest.mark.parametrize("place", ["rows", "loss"])
def test_loader_processes_end_too(ranks: RankPool, tmp_path: Path, place: str) -> None:
    errors = failures_of(ranks, 2, run_faulty, Fault(fresh(tmp_path), place, 1, num_workers=1))
    assert f"broken in {place} on rank 1" in errors[1].message
    assert errors[0].name == "PeerFailed" and f"broken in {place} on rank 1" in errors[0].message


def test_one_of_three_fails(ranks: RankPool, tmp_path: Path) -> None:
    errors = failures_of(ranks, 3, run_faulty, Fault(fresh(tmp_path), "callback", 2))
    assert errors[2].name == "Broken"
    assert [errors[rank].name for rank in (0, 1)] == ["PeerFailed"] * 2


class Tokens(Dataset[dict[str, Tensor]]):
    """Rows of eight tokens; the row that rank 1 has first in the second update has a label out of range."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.arange(8) + index
        labels = ids + 1
        if index == 6:
            labels[3] = 64
        return {"input_ids": ids, "labels": labels}


def train_decoder(directory: str, num_workers: int) -> None:
    torch.manual_seed(0)
    model = decoder_from_config(DecoderModel(num_layers=1, num_heads=2, width=16), vocab_size=64, context=8)
    sections = {"train": {"global_batch": 4, "epochs": 1, "shuffle": False}, "loader": {"num_workers": num_workers}}
    with Trainer(model, config_of(Case(directory, sections)), Tokens()) as trainer:
        trainer.fit()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_label_out_of_range_is_found_before_the_device_sees_it(
    ranks: RankPool, tmp_path: Path, num_workers: int
) -> None:
    errors = failures_of(ranks, 2, train_decoder, fresh(tmp_path), num_workers)
    assert errors[1].name == "ValueRangeError"
    assert errors[1].message.startswith("labels[0, 3] is 64; allowed are 0 to 63, or -100")
    assert errors[0].name == "PeerFailed"
    assert errors[0].message.startswith("rank 1 failed: labels[0, 3] is 64; allowed are 0 to 63, or -100")
