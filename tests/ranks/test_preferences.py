"""Preferences over ranks: one answer, a reference that no checkpoint holds and that a resumed run has again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.data.label_places import LabelPlaces
from drumline.data.padding import Pad
from drumline.models.adapters import with_adapter
from drumline.models.causal_head import find_tail
from drumline.models.reference import add_reference
from drumline.tasks import Preference
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh, largest_difference

VOCABULARY, UPDATES = 24, 6


class Pairs(Dataset[dict[str, Any]]):
    """Prompts that count; the chosen answer goes on upwards, the rejected one downwards."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)
        prompt = (index + torch.arange(3 + index % 4)) % VOCABULARY
        answers = {"chosen": 1, "rejected": -1}
        return {name: self._row(prompt, step, 2 + index % 3) for name, step in answers.items()}

    def _row(self, prompt: Tensor, step: int, length: int) -> dict[str, Tensor]:
        ids = torch.cat([prompt, (prompt[-1] + step * torch.arange(1, length + 1)) % VOCABULARY])
        labels = torch.cat([ids[1:], torch.tensor([-100])])
        labels[: len(prompt) - 1] = -100
        return {"input_ids": ids, "labels": labels}


def train(directory: str, kind: str, adapted: bool, updates: int = UPDATES) -> Any:
    """Losses, evaluation, weights of this rank's checkpoints; a directory with a checkpoint is gone on from."""
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_cache=False,
    )
    model: Any = transformers.LlamaForCausalLM(shape).double()
    settings = HuggingFaceModel(path="none", random_weights=True, adapter=AdapterConfig(rank=4) if adapted else None)
    model = with_adapter(model, settings, "causal").double()
    add_reference(model, settings)
    rows, collate = Pairs(), LabelPlaces(Pad({"input_ids": 0, "labels": -100}, 8))
    task = Preference(VOCABULARY, beta=0.5, tail=find_tail(model))
    parallel = {"kind": kind, "timeout_s": 20, **({"min_params": 100} if kind == "fsdp" else {})}
    settings_of: dict[str, Any] = {
        "train": {
            "global_batch": 5,
            "micro_batch": 2,
            "max_steps": UPDATES,
            "lr": 0.05 if adapted else 0.03,  # matrices that begin at zero move the scores little
            "optimizer": {"name": "adamw", "weight_decay": 0.1},
        },
        "parallel": parallel,
        "evaluate": {"batch": 3},
        "checkpoint": {"at_end": False},
    }
    losses = []
    with Trainer(
        model, config_of(Case(directory, settings_of)), rows, loss=task, eval_data=rows, collate=collate
    ) as run:
        for info in run.steps():
            assert info.logged is not None
            losses.append((info.logged["loss"], info.logged["accuracy"], info.logged["margin"]))
            if info.step == updates < UPDATES:
                run.save()
                break
        found = run.evaluate()
        state = run._run.strategy.state()["model"]
        return losses, found, {name: value.clone() for name, value in state.items() if value is not None}


@pytest.mark.parametrize(("adapted", "kind"), [(False, "fsdp"), (True, "ddp")])
def test_one_answer_and_resume(ranks: RankPool, tmp_path: Path, adapted: bool, kind: str) -> None:
    """Two ranks give what one gives, up to a checkpoint in the middle, and one goes on from it as from its own."""
    ((losses, found, weights),) = ranks.run(1, train, fresh(tmp_path), "single", adapted, timeout=60)
    assert losses[0][0] == pytest.approx(math.log(2), abs=1e-15) and losses[0][2] == 0
    assert found["loss"] < losses[0][0] - 0.03 and found["accuracy"] > 0.5
    assert found["margin"] == pytest.approx(found["chosen_reward"] - found["rejected_reward"])
    assert not any("reference" in name for name in weights)
    directory = fresh(tmp_path)
    for first, _, _ in ranks.run(2, train, directory, kind, adapted, 3, timeout=60):
        torch.testing.assert_close(first, losses[:3], rtol=0, atol=1e-10)
    ((rest, evaluation, resumed),) = ranks.run(1, train, directory, "single", adapted, timeout=60)
    torch.testing.assert_close(rest, losses[3:], rtol=0, atol=1e-10)
    assert evaluation == pytest.approx(found, rel=0, abs=1e-9)
    assert largest_difference(resumed, weights) < 1e-8


def test_an_adapter_under_fsdp(ranks: RankPool, tmp_path: Path) -> None:
    ((losses, found, _),) = ranks.run(1, train, fresh(tmp_path), "single", True, timeout=60)
    for other, evaluation, _ in ranks.run(2, train, fresh(tmp_path), "fsdp", True, timeout=60):
        torch.testing.assert_close(other, losses, rtol=0, atol=1e-10)
        assert evaluation == pytest.approx(found, rel=0, abs=1e-9)
