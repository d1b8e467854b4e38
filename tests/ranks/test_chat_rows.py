"""Chats from a file, by length and of uneven learned parts, give the same losses and weights on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from drumline import Trainer
from drumline.build.parts import build_parts
from drumline.config.load import config_from_mapping
from tests.rank_pool import RankPool
from tests.ranks.training import fresh, largest_difference

CHAT = [
    {
        "messages": [
            {"role": "user", "content": "say " + "ab" * (row % 7)},
            {"role": "assistant", "content": "ab" * (row % 5)},
        ]
    }
    for row in range(46)
]
Answer = tuple[list[float], dict[str, Tensor]]


def train(directory: str, data: dict[str, Any]) -> Answer:
    section = {"kind": "records", "template": "chatml", "context": 96, **data}
    config = config_from_mapping(
        {
            "run_dir": directory,
            "model": {"kind": "decoder", "style": "llama", "num_layers": 1, "num_heads": 2, "width": 16},
            "data": section,
            "train": {"global_batch": 6, "epochs": 1, "lr": 0.01, "optimizer": {"name": "sgd"}},
            "track": {"console": False, "every": 1},
            "checkpoint": {"at_end": False},
            "hardware": {"device": "cpu"},
        },
        "this test",
    )
    built = build_parts(config)
    built.model.double()
    losses = []
    with Trainer(built.model, config, built.train, **built.options) as trainer:
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
    return losses, {name: value.clone() for name, value in built.model.state_dict().items()}


def test_any_number_of_ranks_takes_the_same_steps(ranks: RankPool, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in CHAT))
    data = {"train": [str(file)], "cache_dir": str(tmp_path / "cache")}
    ((alone, weights),) = ranks.run(1, train, fresh(tmp_path), data)
    assert len(alone) == 8
    for losses, others in ranks.run(2, train, fresh(tmp_path), data):
        assert max(abs(one - other) for one, other in zip(alone, losses, strict=True)) < 1e-10
        assert largest_difference(weights, others) < 1e-10
