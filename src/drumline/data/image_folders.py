"""Images in one folder a class: which there are, and their records."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from drumline.config.data import ImageFolders, WeightedPaths
from drumline.config.recipes import expand_path
from drumline.data.images import reads_as_image
from drumline.data.labels import shown
from drumline.data.mixture import mixed, sources_of
from drumline.data.records import RecordSplits
from drumline.data.schema import Column, Schema, merged
from drumline.errors import DataError

logger = logging.getLogger("drumline")

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
"""Files with other endings are no images and passed over."""
MAX_OPENED = 100_000
"""Files of a listing whose beginning is read; of further ones only the size, as reading them would take minutes."""


@dataclass(frozen=True)
class Listing:
    """The images of one folder with a folder a class."""

    paths: tuple[Path, ...]
    """Sorted by class, then by name."""
    unreadable: tuple[Path, ...]
    """Files that end like images and are none."""


class ImageRows(Dataset[dict[str, str]]):
    """Records {"image": path, "label": folder name} of listed images."""

    def __init__(self, folder: Path, listing: Listing) -> None:
        self._folder = folder
        counts = Counter(path.relative_to(folder).parts[0] for path in listing.paths)
        number = len(listing.paths)
        columns = {"image": Column({"image": number}), "label": Column({"text": number}, tuple(counts))}
        self.schema = Schema(columns, number, len(listing.unreadable))
        # One block of bytes: a list of a million paths would be copied into every loader process, count by count.
        self._paths = np.array([os.fsencode(path.relative_to(folder)) for path in listing.paths])

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, str]:
        path = os.fsdecode(self._paths[index])
        return {"image": str(self._folder / path), "label": path.partition(os.sep)[0]}


def load_image_folders(config: ImageFolders) -> RecordSplits:
    """Find the images of the data section. Raises DataError for folders that hold none."""
    train = _load(config.train, "data.train")
    return RecordSplits(train, _load(config.eval, "data.eval") if config.eval else None, train.schema)


def _load(paths: Sequence[str | WeightedPaths], setting: str) -> Any:
    parts: list[tuple[ImageRows, float]] = []
    for source in sources_of(paths, setting):
        for path in source.paths:
            folder = Path(expand_path(path)).expanduser()
            listing = list_images(folder, source.setting)
            if listing.unreadable:
                names = shown([str(each) for each in listing.unreadable])
                logger.warning(
                    "%d files end like images and are none, they are left out: %s", len(listing.unreadable), names
                )
            parts.append((ImageRows(folder, listing), source.weight))
    return mixed(parts, merged([rows.schema for rows, _ in parts]))


def list_images(folder: Path, setting: str) -> Listing:
    """Find the images of each class folder, below further folders too; `setting` is the key that errors name.

    Hidden files and files with other endings are passed over. Raises DataError for a folder that is absent, has no
    class folder, or no image that can be read.
    """
    if not folder.is_dir():
        raise DataError(f"{setting}: {folder} is no folder", "name a folder that has one folder a class")
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise DataError(
            f"{setting}: {folder} holds no folders", "put the images of each class into a folder of its own"
        )
    paths: list[Path] = []
    unreadable: list[Path] = []
    for name in classes:
        for path in _files(name):
            readable = _looks_readable(path, only_size=len(paths) >= MAX_OPENED)
            (paths if readable else unreadable).append(path)
    if not paths:
        found = f"{len(unreadable)} files that cannot be read" if unreadable else "no image"
        raise DataError(
            f"{setting}: {folder} holds {found}", f"put images into its folders ({', '.join(sorted(SUFFIXES))})"
        )
    return Listing(tuple(paths), tuple(unreadable))


def _files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(parent, name)
            for name in sorted(names)
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES  # noqa: PTH122 (per image)
        ]
    return found


def _looks_readable(path: Path, *, only_size: bool) -> bool:
    return path.stat().st_size > 0 and (only_size or reads_as_image(path))
