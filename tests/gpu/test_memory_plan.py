"""The memory that a plan counts beforehand, against what a run on a real GPU takes. Run: pytest -m gpu."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from drumline.engine.facts import count_passes, known
from drumline.models.decoder import Decoder, DecoderShape
from drumline.models.facts import FEW, MORE, Case
from drumline.parallel.objective import Objective, to_device
from drumline.parallel.precision import Precision
from drumline.plan.memory import replicated
from drumline.tasks import LanguageModelling
from tests.unit.plan.machines import run

pytestmark = pytest.mark.gpu

LENGTH, VOCABULARY, SAMPLES = 512, 8192, 8


class Tokens(Dataset[dict[str, Tensor]]):
    """Rows of ascending ids."""

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": torch.arange(LENGTH), "labels": torch.arange(LENGTH)}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_the_estimate_is_near_what_an_update_takes(style: Any, precision: str) -> None:
    """Not below the peak by more than a tenth, and not above it by more than a quarter: gradients come one by one."""
    torch.manual_seed(0)
    model = Decoder(DecoderShape(style, 6, 8, 8, 512, 2048, 0.0, True, VOCABULARY, LENGTH))
    task, config, row = LanguageModelling(VOCABULARY), run(), Tokens()[0]
    facts = known(model, config)
    assert facts is not None
    batches = [default_collate([row] * number) for number in (FEW, MORE, SAMPLES)]
    facts = count_passes(facts, model, Case(task, batches[0], batches[1], precision), config)
    expected = replicated(facts, config, precision, SAMPLES).total

    device = torch.device("cuda")
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    objective = Objective(model, task)
    for update in range(3):
        if update == 2:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(device)
        with Precision(precision, device).autocast():
            loss = objective(to_device(batches[2], device))
        (loss.total / (SAMPLES * LENGTH)).backward()
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated(device)
    assert 0.9 * peak < expected < 1.25 * peak, f"expected {expected / 2**20:.0f} MiB, took {peak / 2**20:.0f} MiB"
