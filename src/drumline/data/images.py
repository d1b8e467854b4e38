"""Images as the numbers that a model takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drumline.errors import ConfigError, DataError, MissingExtra


def pillow() -> Any:
    """The package PIL. Raises MissingExtra where it is not installed."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise MissingExtra("pillow", "data") from None
    return PIL


def reads_as_image(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as an image does; its pixels are not read."""
    package = pillow()
    try:
        with package.Image.open(path):
            return True
    except (OSError, ValueError, SyntaxError, package.Image.DecompressionBombError):
        return False


def open_image(image: Any) -> Any:
    """A Pillow image from a path; what is one already, as the package datasets gives them, is returned as it is.

    Raises DataError that names the file where it cannot be read.
    """
    if not isinstance(image, str | os.PathLike):
        if hasattr(image, "convert"):
            return image
        raise DataError(f"a {type(image).__name__} is no image", "name the column of images in data.columns")
    package = pillow()
    try:
        with package.Image.open(image) as opened:
            opened.load()
            return opened
    except (OSError, ValueError, SyntaxError, package.Image.DecompressionBombError) as error:
        raise DataError(
            f"the image {os.fspath(image)} cannot be read: {error}", "remove the file, or save it again"
        ) from error


@dataclass(frozen=True)
class PixelSettings:
    """How an image becomes numbers."""

    size: int
    """Pixels of a side."""
    channels: int
    mean: Sequence[float] = (0.5,)
    std: Sequence[float] = (0.5,)
    flip: bool = False
    shift: int = 0

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ConfigError(
                    f"data.{name} has {len(values)} values, and images have {self.channels} channels",
                    f"give one, or {self.channels}",
                )


class Pixels:
    """An image as `pixel_values`: float32 [channels, size, size], (value in [0, 1] - mean) / std.

    Turned as its EXIF record says, scaled so that the shorter side has `size` pixels, and cut in the middle. With
    flip and shift it is mirrored and moved, drawn from torch's stream, which the loader seeds for each micro-batch.
    """

    def __init__(self, settings: PixelSettings) -> None:
        self._settings = settings
        scale = 255.0 * np.asarray(settings.std, dtype=np.float32)
        self._factor = (1.0 / scale).reshape(-1, 1, 1)
        self._offset = (np.asarray(settings.mean, dtype=np.float32) * 255.0 / scale).reshape(-1, 1, 1)

    def __call__(self, image: Any) -> Tensor:
        """Give the pixels of a path or a Pillow image. Raises DataError where it cannot be read."""
        values = self._moved(self._square(open_image(image)))
        planes = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(planes * self._factor - self._offset, dtype=np.float32))

    def _square(self, image: Any) -> NDArray[np.uint8]:
        """[size, size] or [size, size, 3]."""
        size = self._settings.size
        package = pillow()
        image = as_mode(package.ImageOps.exif_transpose(image), "L" if self._settings.channels == 1 else "RGB")
        if image.size != (size, size):
            width, height = image.size
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            box = (left, top, left + side, top + side)
            # Pillow averages over all pixels that fall into one, so that scaling down does not alias.
            image = image.resize((size, size), package.Image.Resampling.BILINEAR, box=box)
        return np.asarray(image, dtype=np.uint8)

    def _moved(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self._settings.flip and torch.rand(()) < 0.5:
            values = values[:, ::-1]
        if shift := self._settings.shift:
            down, right = torch.randint(0, 2 * shift + 1, (2,)).tolist()
            edges = ((shift, shift), (shift, shift), (0, 0))[: values.ndim]
            size = self._settings.size
            values = np.pad(values, edges, mode="edge")[down : down + size, right : right + size]
        return values


def as_mode(image: Any, mode: str) -> Any:
    """A Pillow image in a mode, L or RGB; 16 bits a value are scaled to 8."""
    if image.mode.startswith("I"):
        # 16 bits a value; Pillow would cut them off at 255 rather than scale them.
        values = np.asarray(image, dtype=np.float32).clip(0, 65535) * (255.0 / 65535.0)
        image = pillow().Image.fromarray(values.round().astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)
