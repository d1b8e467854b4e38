"""Training on real GPUs: the numbers of the CPU, in every precision, with deferred outcomes. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drumline import DrumlineError, Trainer
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model

pytestmark = pytest.mark.gpu


def losses_on(device: str, folder: Path, **train: Any) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """Losses, weights and skipped updates of a short run in float64 or as `train` says."""
    case = Case(str(folder / f"{device}-{len(list(folder.iterdir()))}"), {"train": {"global_batch": 8, **train}})
    config = config_of(case, hardware={"device": device})
    losses = []
    model = make_model() if train.get("precision", "fp32") == "fp32" else make_model().float()
    with Trainer(model, config, FloatRows(train.get("precision", "fp32")), loss=MaskedRegression([])) as trainer:
        for info in trainer.steps():
            if info.logged is not None:  # a skipped update has no line
                losses.append(info.logged["loss"])
        skipped = trainer._run.progress.skipped
        weights = {name: value.detach().cpu().double() for name, value in trainer.model.state_dict().items()}
    return losses, weights, skipped


class FloatRows(MaskedRows):
    """Rows in the type that the precision trains."""

    def __init__(self, precision: str) -> None:
        super().__init__(37)
        self._single = precision != "fp32"

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return {k: v.float() if self._single and v.is_floating_point() else v for k, v in row.items()}


def test_a_gpu_gives_the_numbers_of_the_cpu(tmp_path: Path) -> None:
    on_cpu, cpu_weights, _ = losses_on("cpu", tmp_path, max_steps=10, precision="fp32", max_norm=0.5)
    on_gpu, gpu_weights, _ = losses_on("cuda", tmp_path, max_steps=10, precision="fp32", max_norm=0.5)
    torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=1e-10)
    torch.testing.assert_close(gpu_weights, cpu_weights, rtol=0, atol=1e-10)


def test_fp16_finds_its_scale(tmp_path: Path) -> None:
    (first, *_), _, _ = losses_on("cuda", tmp_path, max_steps=10, precision="fp32")
    low, weights, skipped = losses_on("cuda", tmp_path, max_steps=10, precision="fp16")
    assert len(low) == 10 and low[0] == pytest.approx(first, rel=0.2)
    assert skipped <= 3  # the first scale may be too large for this loss
    assert all(bool(torch.isfinite(value).all()) for value in weights.values())


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_low_precision_stays_close(tmp_path: Path, precision: str) -> None:
    reference, _, _ = losses_on("cuda", tmp_path, max_steps=10, precision="fp32")
    low, _, skipped = losses_on("cuda", tmp_path, max_steps=10, precision=precision)
    assert skipped == 0
    torch.testing.assert_close(low, reference, rtol=0.02, atol=0.02)


class Exploding(MaskedRegression):
    """Gives NaN for the window with this row."""

    def loss(self, outputs: torch.Tensor, batch: Any) -> Any:
        loss = super().loss(outputs, batch)
        return loss._replace(total=loss.total * torch.where((batch["id"] == 5).any(), torch.nan, 1.0))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_skip_is_decided_on_the_device(tmp_path: Path, optimizer: str) -> None:
    train = {"global_batch": 8, "max_steps": 6, "non_finite": "skip", "optimizer": {"name": optimizer}}
    train["schedule"] = {"name": "linear", "final_fraction": 0.0}
    rates, weights = {}, {}
    for device in ("cpu", "cuda"):
        config = config_of(Case(str(tmp_path / device), {"train": train}), hardware={"device": device})
        rows = MaskedRows(37)
        with Trainer(make_model(), config, rows, loss=Exploding([])) as trainer:
            rates[device] = [info.logged["lr"] for info in trainer.steps() if info.logged]
            # Row 5 comes once an epoch; the skipped update is made up for, so the second epoch begins.
            assert trainer._run.progress.skipped == 2 and trainer._run.progress.step == 6
            weights[device] = {n: v.detach().cpu() for n, v in trainer.model.state_dict().items()}
    assert rates["cuda"][-1] == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(weights["cuda"], weights["cpu"], rtol=1e-6, atol=1e-7)


def test_a_stop_comes_with_clean_weights(tmp_path: Path) -> None:
    config = config_of(Case(str(tmp_path / "stop"), {"train": {"global_batch": 8, "max_steps": 6}}))
    model = make_model()
    with (
        pytest.raises(DrumlineError, match="NaN"),
        Trainer(model, config, MaskedRows(37), loss=Exploding([])) as trainer,
    ):
        trainer.fit()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_step_makes_no_host_sync(tmp_path: Path) -> None:
    train = {"global_batch": 8, "max_steps": 12, "precision": "bf16", "max_norm": 1.0}
    case = Case(str(tmp_path / "sync"), {"train": train, "track": {"every": 100, "console": False}})
    config = config_of(case, hardware={"device": "cuda"}, track={"every": 100, "console": False})
    task = MaskedRegression([])
    with Trainer(make_model().float(), config, FloatRows("bf16"), loss=NoIds(task)) as trainer:
        steps = trainer.steps()
        for _ in range(3):
            next(steps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(6):
                next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")


class NoIds(MaskedRegression):
    """Does not read the ids back, which would be the test's own sync."""

    def __init__(self, inner: MaskedRegression) -> None:
        super().__init__([])

    def loss(self, outputs: torch.Tensor, batch: Any) -> Any:
        self._seen = []
        error = (outputs - batch["y"]).square() * batch["mask"]
        from drumline.parallel.strategy import Loss

        return Loss(error.sum())
