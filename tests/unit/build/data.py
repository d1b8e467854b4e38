"""Small data of every form, and recipes on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from drumline.config.load import config_from_mapping
from drumline.config.schema import RunConfig

TEXTS: list[dict[str, Any]] = [{"text": f"call me {name}", "label": name[0]} for name in ("Ann", "Bob", "Ada", "Ben")]


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> str:
    """A .jsonl file of these records; returns its path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def write_images(folder: Path, classes: Sequence[str] = ("cat", "dog")) -> str:
    """Two images a class, of grey 0 and 255; returns the folder."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for value in (0, 255):
            Image.new("L", (8, 8), value).save(folder / name / f"{value}.png")
    return str(folder)


def recipe(folder: Path, task: str, model: dict[str, Any], **data: Any) -> RunConfig:
    """A recipe with this data section; caches lie in the folder."""
    data.setdefault("kind", "records")
    if data["kind"] == "records":
        data["cache_dir"] = str(folder / "cache")
    train = {"global_batch": 2, "max_steps": 2}
    return config_from_mapping({"task": {"kind": task}, "model": model, "data": data, "train": train}, "this test")
