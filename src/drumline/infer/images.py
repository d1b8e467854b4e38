"""Images before a classifier: read and scaled on the CPU, as pixels of one size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from drumline.data.images import PixelSettings, reads_as_image
from drumline.errors import ConfigError, DataError
from drumline.infer.image_scaling import pixels_for, stated_pixels
from drumline.infer.records import Prepared, Row

PREPROCESSOR = "preprocessor_config.json"
COLUMNS = ("image", "path")
"""Where a row's image may stand, if the settings' own column is not there."""
THREADS = 8

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Picture:
    """One row's image: its file, and its pixels once they were read."""

    path: str
    pixels: Tensor | None = None
    """float32 [C, size, size]."""
    problem: str | None = None

    @property
    def nbytes(self) -> int:
        """What it takes of the host's memory."""
        return 0 if self.pixels is None else self.pixels.nbytes


class ImageClassifier:
    """Images before a model that takes pixel_values [B, C, size, size] and gives logits."""

    def __init__(
        self,
        model: nn.Module,
        settings: PixelSettings,
        column: str,
        device: torch.device,
        *,
        max_rows: int,
        roots: Sequence[Path] | None = None,
    ) -> None:
        """column: holds the image's path, else one of COLUMNS does. max_rows: most of a batch. roots: see RowsConfig.

        Of more rows at once, which are only being planned, files are looked at and no pixels read: those of a whole
        window would be gigabytes.
        """
        self._model = model
        self._settings = settings
        self._pixels = pixels_for(settings)
        self._column = column
        self._device = device
        self._max_rows = max_rows
        self._roots = None if roots is None else [os.path.realpath(root.expanduser()) for root in roots]

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The pixels of each row's image; what is no image is a problem, a damaged one fails when it runs."""
        read = len(rows) <= self._max_rows
        return mapped(lambda row: self._prepared(row, read=read), rows)

    def _prepared(self, row: Row, *, read: bool) -> Prepared | str:
        if row.problem is not None:
            return row.problem
        names = (self._column, *COLUMNS)
        path = next((row.values[name] for name in names if isinstance(row.values.get(name), str)), None)
        if path is None:
            return f"the row has no field with an image's path: none of {', '.join(dict.fromkeys(names))}"
        # One elsewhere is as one that is not there: nobody learns which files there are.
        if not (self._may_read(path) and Path(path).is_file() and reads_as_image(path)):
            return f"the image {path} cannot be read"
        picture = Picture(path)
        if read:
            self._read(picture)
        return Prepared(row.number, 1, 1, picture)

    def _may_read(self, path: str) -> bool:
        if self._roots is None:
            return True
        if "\0" in path:
            return False
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(root) for root in self._roots)

    def _read(self, picture: Picture) -> None:
        try:
            picture.pixels = self._pixels(picture.path)
        except DataError as error:
            picture.problem = error.problem

    def logits(self, rows: Sequence[Prepared | None], width: int) -> tuple[Tensor, dict[int, str]]:
        """The classifier's outputs; an image that only now turned out to be damaged is black, and a problem."""
        there = {place: row.payload for place, row in enumerate(rows) if row is not None}
        mapped(self._read, [each for each in there.values() if each.pixels is None and each.problem is None])
        size = self._settings.size
        batch = torch.zeros(len(rows), self._settings.channels, size, size)
        for place, picture in there.items():
            if picture.pixels is not None:
                batch[place] = picture.pixels
                picture.pixels = None
        floating = next(p for p in self._model.parameters() if p.is_floating_point())
        output = self._model(pixel_values=batch.to(self._device, floating.dtype))
        logits = output if isinstance(output, Tensor) else output.logits
        problems = {place: picture.problem for place, picture in there.items() if picture.problem is not None}
        return logits.float().cpu(), problems


def mapped(function: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Each result, in order, by several threads; Pillow reads outside of Python's lock."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(THREADS, len(items)), thread_name_prefix="drumline-images") as threads:
        return list(threads.map(function, items))


def pixel_settings_of(folder: Path, config: Any) -> PixelSettings:
    """What an image model's folder says of its pixels: preprocessor_config.json, else its configuration.

    Raises ConfigError where no size is stated, or one that is no square.
    """
    file = folder / PREPROCESSOR
    try:
        stated: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is damaged: {error}", "copy the model again") from error
    channels = int(getattr(config, "num_channels", 3))
    return stated_pixels(stated, getattr(config, "image_size", None), channels, str(folder))
