"""Adapters over quantised weights, and moments in 8 bits, on a real GPU. Run: pytest -m gpu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import drumline
from drumline import Trainer
from drumline.build.parts import build_parts
from drumline.engine.int8_states import Int8AdamW
from drumline.models.quantised import PackedLinear
from tests.gpu.syncs import waits_of
from tests.ranks.adapted import VOCABULARY, tiny_llama
from tests.ranks.training import Case, config_of, fresh

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Synchronization debug mode")]

LORA: dict[str, Any] = {"adapter": {"rank": 8}}
INT8: dict[str, Any] = {"name": "adamw", "state_precision": "int8"}


def losses_of(
    directory: str, folder: str, model: dict[str, Any], train: dict[str, Any], kind: str, load: str | None = None
) -> list[float]:
    """Of eight updates in bfloat16."""
    sections = {
        "model": {"kind": "huggingface", "path": folder, **model},
        "data": {"kind": "random_tokens", "num_rows": 32, "context": 16, "vocab_size": VOCABULARY},
        "task": {"kind": "language_modelling", "chunked_loss": False},
        "train": {"global_batch": 8, "max_steps": 8, "precision": "bf16", "lr": 3e-3, **train},
        "parallel": {"kind": kind, "timeout_s": 60},
        "hardware": {"device": "cuda"},
        "checkpoint": {"every": 4, "at_end": False},
    }
    config = config_of(Case(directory, sections))
    built = build_parts(config)
    losses = []
    with Trainer(built.model, config, built.train, **built.options) as trainer:
        if load is not None:
            trainer.load(load)
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
    return losses


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tiny_llama(tmp_path / "base", hidden_size=128, intermediate_size=256)
    return str(tmp_path / "base")


@pytest.mark.parametrize("quantise", ["nf4", "int8"])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_quantised_weights_train_an_adapter(tmp_path: Path, folder: str, quantise: str, kind: str) -> None:
    (tmp_path / "runs").mkdir()
    adapter = {"adapter": {"rank": 8, "kind": kind}}
    train = {"optimizer": {"name": "adamw"}}
    plain = losses_of(fresh(tmp_path / "runs"), folder, adapter, train, "single")
    found = losses_of(fresh(tmp_path / "runs"), folder, {**adapter, "quantise": quantise}, train, "single")
    assert found == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("quantise", ["nf4", "int8"])
def test_a_layer_is_unpacked_alike_on_both_devices(quantise: Any) -> None:
    torch.manual_seed(0)
    layer = PackedLinear(torch.nn.Linear(128, 64), quantise)
    x = torch.randn(4, 128)
    expected = layer(x)
    there = layer.to("cuda")
    torch.testing.assert_close(there(x.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
    with torch.autocast("cuda", torch.bfloat16):
        assert there(x.cuda()).dtype == torch.bfloat16


@pytest.mark.parametrize("paged", [False, True])
def test_8_bit_moments_follow_whole_ones_and_resume(tmp_path: Path, folder: str, paged: bool) -> None:
    (tmp_path / "runs").mkdir()
    whole: dict[str, Any] = {"optimizer": {"name": "adamw"}, "precision": "fp32", "non_finite": "skip"}
    small = {**whole, "optimizer": {**INT8, "paged": paged}}
    plain = losses_of(fresh(tmp_path / "runs"), folder, {}, whole, "single")
    first = fresh(tmp_path / "runs")
    found = losses_of(first, folder, {}, small, "single")
    assert found == pytest.approx(plain, rel=0.03)
    resumed = losses_of(fresh(tmp_path / "runs"), folder, {}, small, "single", f"{first}/checkpoints/step_4")
    assert resumed == pytest.approx(found[4:], rel=1e-5)


def test_paged_moments_are_those_that_are_not() -> None:
    found = []
    for paged in (False, True):
        torch.manual_seed(0)
        p = torch.nn.Parameter(torch.randn(64, 256, device="cuda"))
        optimizer = Int8AdamW([p], fused=True, paged=paged, lr=1e-2)
        for _ in range(3):
            p.grad = torch.randn_like(p)
            optimizer.step()
        assert optimizer.state[p]["exp_avg"].is_cuda
        found.append(p.detach())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize("paged", [False, True])
def test_8_bit_moments_make_nobody_wait(tmp_path: Path, paged: bool) -> None:
    train = {"precision": "bf16", "non_finite": "skip", "optimizer": {**INT8, "paged": paged}}
    assert waits_of(fresh(tmp_path), train, {"kind": "single"}) == []


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_gpu(tmp_path: Path, folder: str, kind: str) -> None:
    (tmp_path / "runs").mkdir()
    model, train = {**LORA, "quantise": "nf4"}, {"optimizer": INT8}
    expected = losses_of(fresh(tmp_path / "runs"), folder, model, train, "single")
    for found in drumline.launch(losses_of, (fresh(tmp_path / "runs"), folder, model, train, kind)):
        assert found == pytest.approx(expected, rel=0.02)
