"""train.deterministic on a GPU: equal bits, and the name of what cannot give them. Run: pytest -m gpu."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.errors import ConfigError
from drumline.parallel.strategy import Batch
from tests.ranks.training import Case, config_of, fresh

pytestmark = pytest.mark.gpu

LENGTH, WORDS, WIDTH = 64, 97, 128


class Words(Dataset[dict[str, Tensor]]):
    """Rows of few distinct ids, so that many gradients meet in one row of the embedding."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"ids": torch.randint(WORDS, (LENGTH,), generator=generator)}


class Reader(nn.Module):
    """Embedding, dropout, attention, and a sum by segments with atomic additions where torch may use them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.layer(self.words(ids))
        segments = torch.zeros(7, WIDTH, dtype=x.dtype, device=x.device)
        segments = segments.index_add(0, ids.flatten() % 7, x.flatten(0, 1))
        scores: Tensor = self.head(x + segments[ids % 7] / LENGTH)
        return scores


def next_word(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch["ids"])
    return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch["ids"][:, 1:].flatten())


def pooled(model: nn.Module, batch: Batch) -> Tensor:
    """A loss with an operation whose backward pass adds atomically."""
    scores = model(batch["ids"])
    return nn.functional.adaptive_avg_pool2d(scores[:, None], (5, 5)).square().mean()


def run(folder: Path, loss: Any, precision: str, deterministic: bool = True) -> tuple[list[float], dict[str, Tensor]]:
    settings = {
        "global_batch": 32,
        "micro_batch": 16,
        "max_steps": 6,
        "lr": 1e-3,
        "precision": precision,
        "max_norm": 0.5,
        "optimizer": {"name": "adamw"},
        "deterministic": deterministic,
    }
    case = Case(fresh(folder), {"train": settings})
    model, losses = Reader(), []
    with Trainer(model, config_of(case, hardware={"device": "cuda"}), Words(), loss=loss) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_runs_give_equal_bits(tmp_path: Path, precision: str) -> None:
    first, second = (run(tmp_path, next_word, precision) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert first[0][-1] < first[0][0]
    free, _ = run(tmp_path, next_word, precision, deterministic=False)
    torch.testing.assert_close(free, first[0], rtol=1e-2, atol=0)
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_has_no_repeatable_form_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adaptive_avg_pool2d_backward_cuda has no implementation here"):
        run(tmp_path, pooled, "fp32")
    assert not torch.are_deterministic_algorithms_enabled()


USED_BEFORE = """
import torch
from pathlib import Path
from tests.gpu.test_deterministic import next_word, run
torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
first, second = (run(Path({folder!r}), next_word, "bf16") for _ in range(2))
torch.testing.assert_close(first, second, rtol=0, atol=0)
"""


def test_a_cublas_that_was_used_before_the_run_gives_equal_bits_too(tmp_path: Path) -> None:
    code = USED_BEFORE.format(folder=str(tmp_path))
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
