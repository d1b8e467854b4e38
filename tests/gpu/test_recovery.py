"""Memory runs out on one of several GPUs, at each place of an update, over NCCL. Run: pytest -m gpu."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import drumline
from tests.ranks.faults import Fault, Where, train_with
from tests.ranks.test_out_of_memory import TRAIN, _model, adamw
from tests.ranks.training import Case, fresh

pytestmark = pytest.mark.gpu

PLACES: tuple[Where | None, ...] = (None, "forward", "backward", "synchronising", "step", "after the step")
ALONE = PLACES[:4]
"""On one GPU: where a step breaks off, nobody has whole weights, so that the processes start again."""
MOST_S = 3.0
"""From the error until training goes on, under ddp."""


def fused(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1, fused=True)


class Outcome(NamedTuple):
    """What one rank came to."""

    weights: dict[str, Tensor]
    micro_batch: int | None
    generation: int
    seconds: list[float]
    """Of each recovery, as the log says."""


class Notes(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def all_places(directory: str, optimizer: Any, late: bool) -> list[Outcome]:
    logger, notes, found = logging.getLogger("drumline"), Notes(), []
    logger.addHandler(notes)
    logger.setLevel(logging.INFO)
    num_gpus = torch.cuda.device_count()
    config: dict[str, Any] = {"train": {**TRAIN, "micro_batch": 3}, "monitor": {"record": False}}
    if num_gpus > 1:
        config["parallel"] = {"kind": "ddp", "timeout_s": 60, "bucket_mb": 1e-4}
    if late:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # hooks would cut the graph
        config["train"]["compile"] = "whole"
    for place in PLACES if num_gpus > 1 else ALONE:
        notes.texts.clear()
        case = Case(f"{directory}/{place or 'undisturbed'}", config)
        faults = [] if place is None else [Fault(place, rank=num_gpus - 1)]
        seen = train_with(case, faults, _model, optimizer)
        weights = {name: value.cpu() for name, value in seen.weights.items()}
        seconds = [float(match[1]) for text in notes.texts if (match := re.search(r"recovered after ([\d.]+) s", text))]
        found.append(Outcome(weights, seen.micro_batch, seen.generation, seconds))
    return found


@pytest.mark.parametrize(("optimizer", "late"), [(adamw, False), (fused, False), (fused, True)])
def test_every_place_ends_in_the_undisturbed_weights(tmp_path: Path, optimizer: Any, late: bool) -> None:
    """late: all is reduced after the backward pass."""
    began = time.monotonic()
    ranks = drumline.launch(all_places, (fresh(tmp_path), optimizer, late), run_dir=tmp_path / "launch")
    assert time.monotonic() - began < 60
    undisturbed = ranks[0][0]
    for number, place in enumerate(PLACES if len(ranks) > 1 else ALONE):
        first = ranks[0][number]
        for rank in ranks:
            for name, value in rank[number].weights.items():
                assert torch.equal(value, first.weights[name]), (place, name)
                assert torch.allclose(value, undisturbed.weights[name], rtol=0, atol=1e-12), (place, name)
        if place is not None:
            assert first.micro_batch == 1
            assert first.seconds and max(first.seconds) < MOST_S
            assert first.generation == (1 if len(ranks) > 1 else 0)
