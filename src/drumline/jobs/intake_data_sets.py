"""Folders that the package datasets opens: what in them would have it read files elsewhere, or run code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drumline.errors import ConfigError

SAVED, SPLITS = "state.json", "dataset_dict.json"
"""What save_to_disk leaves in the folder of a single split, and in that of several."""
CARD, SETTINGS = "README.md", ".huggingface.yaml"
"""Where the package looks for data_files, which may be any path or address."""
_HEAD_CHARS = 1 << 16


def check_data_set(path: str, setting: str) -> None:
    """Raise ConfigError for what a run with data.kind datasets must not open because a request says so."""
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"{setting}: {path!r} is no folder", "name a folder, or read files with data.kind records")
    if check_saved(path, setting):
        return
    scripts = sorted(each.name for each in folder.glob("*.py"))
    if scripts:
        raise ConfigError(f"{setting}: {path!r} has {scripts[0]}, which might be run", "name a folder without any")
    if (folder / SETTINGS).exists() or _has_card(folder / CARD):
        raise ConfigError(
            f"{setting}: {path!r} has a card, {CARD} or {SETTINGS}, whose settings may name files elsewhere",
            "name its files with data.kind records, or let who runs the service remove the card or save_to_disk it",
        )


def check_saved(path: str, setting: str) -> bool:
    """Whether save_to_disk has written the folder. Raises ConfigError where its files would be looked for elsewhere."""
    folder = Path(path)
    if (folder / SPLITS).is_file():
        parts = _names(folder / SPLITS, setting)
        for part in parts:
            _names(folder / part / SAVED, setting)
        return True
    if (folder / SAVED).is_file():
        _names(folder / SAVED, setting)
        return True
    return False


def _names(file: Path, setting: str) -> list[str]:
    """The names of splits or of files that stand in a file of save_to_disk."""
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"))
        names = values["splits"] if file.name == SPLITS else [each["filename"] for each in values["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{setting}: {str(file)!r} is not as save_to_disk writes it", "save it again") from None
    if not isinstance(names, list) or not all(_is_plain(name) for name in names):
        raise ConfigError(f"{setting}: {str(file)!r} names files that do not lie beside it", "save it again")
    return names


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name not in ("", "..") and "\0" not in name and Path(name).name == name


def _has_card(file: Path) -> bool:
    """Whether it begins with settings, whichever: how YAML is written they cannot be told without reading all of it."""
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            head = text.read(_HEAD_CHARS)
    except (FileNotFoundError, IsADirectoryError):
        return False
    except OSError:
        return True
    start = head.lstrip()
    return start.startswith("---") or (len(head) == _HEAD_CHARS and len(start) < 3)
