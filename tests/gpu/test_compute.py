"""How a model is computed on a real GPU: number formats, recorded graphs, recomputation, memory. Run: pytest -m gpu."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from drumline import RunConfig, Trainer
from drumline.models.decoder import Decoder, DecoderShape
from drumline.tasks.language_modelling import LanguageModelling

pytestmark = [
    pytest.mark.gpu,
    # What torch 2.11 says of its own names that torchao calls, and of an empty graph that makes its memory pool.
    pytest.mark.filterwarnings("ignore:torch.get_autocast_gpu_dtype:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
]

SMALL = DecoderShape("gpt2", 3, 2, 2, 128, 256, 0.0, False, 512, 64)
DEEP = DecoderShape("llama", 8, 4, 4, 256, 768, 0.0, True, 512, 256)
UNEVEN = 31
"""Tokens of a row, so that no batch here has a multiple of 16."""


class Counting(Dataset[dict[str, Tensor]]):
    """Row i counts up from i by 1 + i % 3."""

    def __init__(self, num_rows: int, context: int, vocabulary: int = 512) -> None:
        self._num_rows = num_rows
        self._context = context
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + torch.arange(self._context + 1) * (1 + index % 3)) % self._vocabulary
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def train(
    folder: Path, settings: dict[str, Any], shape: DecoderShape = SMALL, context: int = UNEVEN, *, chunked: bool = False
) -> tuple[list[float], Mapping[str, float], int]:
    """Losses of every update, the last evaluation, and the most bytes that were allocated."""
    config = {
        "run_dir": str(folder / f"run-{len(list(folder.iterdir()))}"),
        "hardware": {"device": "cuda", "gpus": ["0"]},
        "parallel": {"kind": "single"},
        "track": {"every": 1, "console": False},
        "checkpoint": {"at_end": False},
        "evaluate": {"every": "end"},
        "loader": {"num_workers": 0},
        "monitor": {"record": False},
        "train": {"global_batch": 6, "max_steps": 12, "lr": 1e-3, "precision": "bf16", **settings},
    }
    torch.manual_seed(0)
    model, task = Decoder(shape), LanguageModelling(shape.vocab_size, chunked_loss=chunked)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    rows = Counting(96, context, shape.vocab_size)
    with Trainer(
        model, RunConfig.model_validate(config), rows, loss=task, eval_data=Counting(8, context, shape.vocab_size)
    ) as trainer:
        infos = list(trainer.steps())
    losses = [info.logged["loss"] for info in infos if info.logged is not None]
    assert infos[-1].evaluation is not None
    return losses, infos[-1].evaluation, torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("products", ["float8", "float8_rowwise", "int8"])
def test_losses_of_short_formats_are_near_those_of_bf16(tmp_path: Path, products: str) -> None:
    plain, _, _ = train(tmp_path, {})
    found, _, _ = train(tmp_path, {"linear": {"products": products}})
    assert plain[-1] < 0.9 * plain[0]
    assert found != plain
    assert found == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("compiler", ["none", "blocks"])
def test_sparse_weights_learn_too(tmp_path: Path, compiler: str) -> None:
    found, _, _ = train(tmp_path, {"linear": {"products": "sparse_24"}, "compile": compiler})
    assert found[-1] < 0.9 * found[0]


def test_float8_compiled_by_blocks_with_checkpointing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"linear": {"products": "float8"}, "global_batch": 8}
    eager, _, _ = train(tmp_path, settings, context=32)
    settings |= {"compile": "blocks", "checkpointing": {"kind": "selective"}}
    compiled, _, _ = train(tmp_path, settings, context=32)
    assert compiled == pytest.approx(eager, rel=0.02)


@pytest.mark.parametrize("mode", ["whole", "blocks"])
def test_recorded_graphs_accumulate_the_same_gradients(tmp_path: Path, mode: str) -> None:
    """Three passes an update, whose gradients are one graph's memory, and an evaluation between updates."""
    settings = {"compile": mode, "micro_batch": 2, "precision": "fp32"}
    plain, evaluation, _ = train(tmp_path, settings, context=32)
    found, again, _ = train(tmp_path, {**settings, "cuda_graphs": True}, context=32)
    assert found == pytest.approx(plain, rel=1e-5)
    assert again == pytest.approx(evaluation, rel=1e-5)


def test_checkpointing_takes_less_memory_for_the_same_losses(tmp_path: Path) -> None:
    peaks, losses = {}, {}
    kinds: dict[str, dict[str, Any]] = {
        "none": {"kind": "none"},
        "every": {"kind": "selective", "every": 2},
        "selective": {"kind": "selective"},
        "full": {"kind": "full"},
    }
    for name, kind in kinds.items():
        settings = {"checkpointing": kind, "global_batch": 32, "max_steps": 3}
        losses[name], _, peaks[name] = train(tmp_path, settings, DEEP, 256)
        assert losses[name] == pytest.approx(losses["none"], rel=1e-3)
    assert peaks["full"] < peaks["selective"] < peaks["none"]
    assert peaks["full"] < peaks["every"] < peaks["none"]


def test_a_budget_takes_less_memory(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"compile": "whole", "global_batch": 32, "max_steps": 3}
    shape = DecoderShape("llama", 3, 4, 4, 256, 768, 0.0, True, 512, 256)
    plain, _, most = train(tmp_path, settings, shape, 256)
    settings["checkpointing"] = {"kind": "budget", "budget": 0.2}
    found, _, peak = train(tmp_path, settings, shape, 256)
    assert found == pytest.approx(plain, rel=1e-3)
    assert peak < most


def test_a_chunked_loss_takes_less_memory(tmp_path: Path) -> None:
    shape = DecoderShape("gpt2", 1, 2, 2, 128, 256, 0.0, True, 65536, 256)
    settings = {"global_batch": 32, "max_steps": 3}
    plain, evaluation, most = train(tmp_path, settings, shape, 256)
    found, again, peak = train(tmp_path, settings, shape, 256, chunked=True)
    assert found == pytest.approx(plain, rel=1e-3)
    assert again["loss"] == pytest.approx(evaluation["loss"], rel=1e-3)
    assert peak < 0.75 * most


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_half_moments_follow_full_ones(tmp_path: Path, half: str) -> None:
    """With the rate on the device, as where updates may be skipped."""
    settings: dict[str, Any] = {"precision": "fp32", "non_finite": "skip"}
    plain, _, _ = train(tmp_path, settings)
    found, _, _ = train(tmp_path, {**settings, "optimizer": {"state_precision": half}})
    assert found != plain
    assert found == pytest.approx(plain, rel=0.02)
    assert plain[-1] < 0.9 * plain[0]


def test_segments_grow_and_are_as_before_afterwards(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    config = RunConfig.model_validate(
        {
            "run_dir": str(tmp_path / "run"),
            "hardware": {"device": "cuda", "gpus": ["0"], "empty_cache": "epoch"},
            "track": {"console": False},
            "train": {"global_batch": 8, "epochs": 1},
        }
    )
    with Trainer(Decoder(DEEP), config, Counting(16, 64), loss=LanguageModelling(512)) as trainer:
        for _ in trainer.steps():
            assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    kept = torch.zeros(2**24, device="cuda")
    places = [
        s for s in torch.cuda.memory_snapshot() if s["address"] <= kept.data_ptr() < s["address"] + s["total_size"]
    ]
    assert [place["is_expandable"] for place in places] == [False]
