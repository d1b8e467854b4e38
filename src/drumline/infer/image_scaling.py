"""What a preprocessor_config.json says of images: how they are scaled and cut, and what of it is not done here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from drumline.data.images import Pixels, PixelSettings, as_mode, open_image, pillow
from drumline.errors import ConfigError

NOT_DONE = ("crop_pct", "do_pad", "do_flip_channel_order", "include_top", "do_thumbnail", "do_align_long_axis")
"""Of such files: what changes pixels and is not done."""
BY_SHORTER_SIDE = ("CLIP", "Chinese", "Bit", "ConvNext", "Levit", "MobileNet", "MobileViT", "PoolFormer")
"""Beginnings of the processors' names that take a size that is a mere number for the shorter side's."""
BILINEAR = 2
"""As Pillow numbers the ways to scale."""
RESAMPLES = range(6)

logger = logging.getLogger("drumline")


@dataclass(frozen=True)
class ScaledPixels(PixelSettings):
    """Settings of an image that is scaled first, and then cut in the middle, or filled up with black, to its size."""

    to: tuple[int, int] | int | None = None
    """Width and height, or the pixels of the shorter side; None: it is not scaled before."""
    resample: int = BILINEAR


def pixels_for(settings: PixelSettings) -> Callable[[Any], Tensor]:
    """What makes the pixels of an image; see `Pixels`."""
    pixels = Pixels(settings)
    if not isinstance(settings, ScaledPixels):
        return pixels
    scaled = settings
    return lambda image: pixels(fitted(image, scaled))


def fitted(image: Any, settings: ScaledPixels) -> Any:
    """An image, or that at a path, as a Pillow image of the size. Raises DataError where it cannot be read."""
    turned = pillow().ImageOps.exif_transpose(open_image(image))
    turned = as_mode(turned, "L" if settings.channels == 1 else "RGB")
    width, height = turned.size
    to = settings.to
    if isinstance(to, int):
        short = min(width, height)
        to = (to if width == short else int(to * width / short), to if height == short else int(to * height / short))
    if to is not None and to != turned.size:
        turned = turned.resize(to, settings.resample)
    size = settings.size
    if turned.size == (size, size):
        return turned
    left, top = (turned.size[0] - size) // 2, (turned.size[1] - size) // 2
    return turned.crop((left, top, left + size, top + size))


def stated_pixels(stated: Mapping[str, Any], image_size: Any, channels: int, where: str) -> PixelSettings:
    """The settings that such a file states, and a warning of what is not done. image_size: what the model says.

    Without a size of its own to scale to, the shorter side is scaled to the model's, and the middle is cut out. Raises
    ConfigError where no size is stated, or one that is no square.
    """
    cut = stated.get("crop_size") if stated.get("do_center_crop") else None
    size = side_of(cut) or side_of(stated.get("size")) or side_of(image_size)
    if size is None:
        raise ConfigError(f"{where} does not say what size its images have", "add a size to preprocessor_config.json")
    to = scaled_to(stated)
    for each in (cut,) if cut else (image_size,) if to is None else (to,):
        wide, high = (each.get("width"), each.get("height")) if isinstance(each, dict) else (None, None)
        wide, high = each if isinstance(each, tuple | list) and len(each) == 2 else (wide, high)
        if wide != high:
            raise ConfigError(f"the images of {where} are {wide} wide and {high} high, and no squares", "another model")
    if not_done := [name for name in NOT_DONE if stated.get(name)]:
        logger.warning("%s states %s, which is not done with images here", where, ", ".join(not_done))
    resample = stated.get("resample", BILINEAR)
    if resample not in RESAMPLES:
        logger.warning("%s states resample %s, which is not known: it is bilinear", where, resample)
        resample = BILINEAR
    mean, std = normalised(stated)
    if stated.get("do_resize", True) and to is None:
        return PixelSettings(size, channels, mean, std)
    return ScaledPixels(size, channels, mean, std, to=to, resample=int(resample))


def scaled_to(stated: Mapping[str, Any]) -> tuple[int, int] | int | None:
    """What an image is scaled to: width and height, the shorter side, or None where that is not stated."""
    size = stated.get("size")
    if not stated.get("do_resize", True) or size is None:
        return None
    if isinstance(size, dict):
        if size.get("height") and size.get("width"):
            return int(size["width"]), int(size["height"])
        return int(size["shortest_edge"]) if size.get("shortest_edge") else None
    if isinstance(size, list | tuple):
        return (int(size[0]), int(size[-1])) if size else None
    kind = str(stated.get("image_processor_type") or stated.get("feature_extractor_type") or "")
    return int(size) if kind.startswith(BY_SHORTER_SIDE) else (int(size), int(size))


def normalised(stated: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of values in [0, 1] that come to what is stated of values times `rescale_factor`."""
    means, stds = stated.get("image_mean") or [0.5], stated.get("image_std") or [0.5]
    if stated.get("do_normalize") is False:
        means, stds = [0.0], [1.0]
    factor = 255.0 * float(stated.get("rescale_factor", 1 / 255)) if stated.get("do_rescale", True) else 255.0
    if abs(factor - 1.0) < 1e-6:
        factor = 1.0  # as most files have it, in as many digits as they like
    offset = 1.0 if stated.get("rescale_offset") and stated.get("do_rescale", True) else 0.0
    as_list: Callable[[Any], list[float]] = lambda value: [value] if isinstance(value, int | float) else value  # noqa: E731
    return (
        tuple((float(mean) + offset) / factor for mean in as_list(means)),
        tuple(float(std) / factor for std in as_list(stds)),
    )


def side_of(size: Any) -> int | None:
    """The pixels of a side, of the several ways in which such files state a size."""
    if isinstance(size, dict):
        return next((int(size[name]) for name in ("height", "shortest_edge", "width") if size.get(name)), None)
    if isinstance(size, list | tuple):
        return int(size[0]) if size else None
    return size if isinstance(size, int) else None
