"""A tiny model and rows of mixed lengths, some bad, for tests of `drumline infer`, and the arguments to answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.predictions import DONE, PredictionDir
from tests.tiny_models import save_llama

BROKEN, LACKING, LONG = (3, 17), (9, 30), 21
"""Rows that are no JSON, that have no `text`, and one that is longer than the model takes."""


def write_rows(path: Path, count: int) -> Path:
    """JSONL whose rows have an id and a text of a length of their own; the bad ones are as above."""
    lines = []
    for number in range(count):
        row: dict[str, Any] = {"id": f"r{number}", "text": "whale " * (1 + number * 7 % 23), "keep": [number]}
        if number in LACKING:
            del row["text"]
        if number == LONG:
            row["text"] = "whale " * 600
        lines.append("{broken\n" if number in BROKEN else json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return path


def make_model(folder: Path) -> Path:
    """A causal model that takes 512 tokens, in a folder of its own."""
    model = folder / "model"
    model.mkdir()
    save_llama(model)
    return model


def arguments(model: Path, data: Path, out: str, workers: int = 1, **settings: Any) -> list[str]:
    """`infer` with greedy answers of a few tokens on the CPU."""
    known: Mapping[str, Any] = {
        "hardware.num_processes": workers,
        "hardware.device": "cpu",
        "task.max_new_tokens": 16,
        "batching.rows": 2,
        "batching.window": 16,
    }
    chosen = [f"{name}={value}" for name, value in {**known, **settings}.items()]
    prompt = ["--prompt", "Tell of {text}"]
    given = ["infer", "--model", str(model), "--data", str(data), "--out", out, *prompt]
    return [*given, *(word for each in chosen for word in ("--set", each))]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def batches_done(out: Path) -> int:
    """How many batches of a run that goes on have answers."""
    state = PredictionDir(out.with_name(f"{out.name}.run")).state
    return state.read_bytes().count(DONE) if state.is_file() else 0
