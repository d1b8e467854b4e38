"""How an exported model writes text when nobody says otherwise: its generation_config.json."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drumline.rundir import read_json, write_json

FILE = "generation_config.json"


def write_generation(out: Path, base: Path | None, ends: Iterable[int] = (), pad: int | None = None) -> None:
    """Give a new Hugging Face folder the settings of the model that training began with, and the ends it has learned.

    out: holds what transformers derives from the model's shape, where the model writes text; of others nothing is
    written. base: folder of the model before; None where it is not known. ends: ids after which an answer is over,
    besides those that are there; pad: id that fills up shorter answers, where none is there.
    """
    if not (out / FILE).is_file():
        return
    settings: dict[str, Any] = read_json(out / FILE)
    if base is not None and (base / FILE).is_file():
        settings |= read_json(base / FILE)
    settings["eos_token_id"] = as_one(dict.fromkeys([*ids_of(settings.get("eos_token_id")), *ends]))
    if settings.get("pad_token_id") is None:
        settings["pad_token_id"] = pad
    # By that mark transformers lets config.json overrule the file when it loads it.
    settings.pop("_from_model_config", None)
    write_json(out / FILE, {name: value for name, value in settings.items() if value is not None})


def ids_of(value: Any) -> list[int]:
    """One id, several or none, as a list."""
    return [] if value is None else [int(each) for each in (value if isinstance(value, list) else [value])]


def as_one(ids: Iterable[int]) -> int | list[int] | None:
    """A list of ids as such files have it."""
    found = list(ids)
    return None if not found else found[0] if len(found) == 1 else found
