"""What a run does besides plain passes, on every GPU there is: learners in turn, noise, metrics, compiled blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics.classification  # noqa: F401  what it imports may set variables, the first time
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import drumline
from drumline import RunConfig, Trainer
from drumline.build.parts import build_trainer
from drumline.rundir import RunDir
from drumline.tasks.classification import Classification
from tests.ranks import test_gan, test_gradient_noise
from tests.ranks.training import Case, config_of, fresh

pytestmark = pytest.mark.gpu


def test_two_learners_take_turns_with_the_numbers_of_a_loop_by_hand(tmp_path: Path) -> None:
    losses, weights = test_gan.by_hand()
    for seen in drumline.launch(test_gan.train, (fresh(tmp_path), {})):
        for name in test_gan.NAMES:
            logged = [line[f"{name}/loss"] for line in seen.lines]
            torch.testing.assert_close(logged, losses[name], rtol=0, atol=1e-6)  # fused AdamW computes in float32
        found = {name: value.cpu() for name, value in seen.weights.items()}
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)


def test_the_noise_scale_is_what_a_direct_computation_gives(tmp_path: Path) -> None:
    world = torch.cuda.device_count()
    share = -(-10 // world)  # of a window's ten rows; the first micro-batch has three of them
    firsts = [list(range(rank * share, rank * share + min(3, share))) for rank in range(world)]
    expected = [test_gradient_noise.estimate(firsts, range(0, 3)), test_gradient_noise.estimate(firsts, range(3, 6))]
    for found in drumline.launch(test_gradient_noise.train, (fresh(tmp_path), 3, 3)):
        assert found == pytest.approx(expected, rel=1e-6)


class Scores(nn.Module):
    """Adds a weight to each score."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def evaluate(directory: str, device: str) -> dict[str, float]:
    """Every metric of 21 rows in batches of 4."""
    generator = torch.Generator().manual_seed(5)
    truth = torch.randint(3, (21,), generator=generator)
    scores = torch.randn(21, 3, dtype=torch.float64, generator=generator) + nn.functional.one_hot(truth, 3)
    rows = TensorDataset(scores, truth)
    settings: dict[str, Any] = {"train": {"global_batch": 4, "max_steps": 1, "precision": "fp32"}}
    config = config_of(Case(directory, settings), hardware={"device": device}, evaluate={"batch": 4})
    with Trainer(Scores(), config, rows, loss=Classification(3), eval_data=rows) as trainer:
        return trainer.evaluate()


def test_metrics_gathered_over_gpus_are_those_of_one_cpu(tmp_path: Path) -> None:
    expected = evaluate(fresh(tmp_path), "cpu")
    assert {"loss", "accuracy", "f1", "auc"} <= expected.keys()
    for found in drumline.launch(evaluate, (fresh(tmp_path), "cuda")):
        assert found == pytest.approx(expected, rel=1e-12)


def losses_compiled(folder: str, mode: str) -> list[float]:
    """Of six updates of a small decoder."""
    config = RunConfig.model_validate(
        {
            "data": {"kind": "random_tokens", "num_rows": 16, "context": 32, "vocab_size": 64},
            "model": {"kind": "decoder", "style": "llama", "num_layers": 3, "width": 32, "num_heads": 2},
            "train": {"global_batch": 6, "micro_batch": 2, "max_steps": 4, "compile": mode, "precision": "fp32"},
            "track": {"every": 1, "console": False},
            "loader": {"num_workers": 0},
            "monitor": {"record": False},
            "checkpoint": {"at_end": False},
        }
    )
    Path(folder).mkdir(exist_ok=True)
    with build_trainer(config, RunDir(Path(folder))) as trainer:
        return [info.logged["loss"] for info in trainer.steps() if info.logged is not None]


@pytest.mark.parametrize("mode", ["whole", "blocks"])
def test_compiled_runs_have_the_losses_of_an_eager_one(tmp_path: Path, mode: str) -> None:
    eager = drumline.launch(losses_compiled, (fresh(tmp_path), "none"))[0]
    assert len(eager) == 4
    for found in drumline.launch(losses_compiled, (fresh(tmp_path), mode)):
        assert found == pytest.approx(eager, rel=1e-5)
