"""Pixels as transformers' own processors make them of what a preprocessor_config.json states."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import PIL.Image
import pytest

from drumline.data.images import PixelSettings
from drumline.errors import ConfigError
from drumline.infer.image_scaling import ScaledPixels, pixels_for, scaled_to, side_of, stated_pixels

SQUARE = {"height": 12, "width": 12}
STATED: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {"size": SQUARE, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]},
    "CLIPImageProcessor": {"size": {"shortest_edge": 20}, "crop_size": SQUARE, "do_center_crop": True, "resample": 3},
    "DeiTImageProcessor": {"size": {"height": 9, "width": 9}, "crop_size": SQUARE, "do_center_crop": True},
    "BeitImageProcessor": {"size": SQUARE, "rescale_factor": 1 / 127.5, "resample": 0},
    "EfficientNetImageProcessor": {
        "size": SQUARE,
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "include_top": False,
    },
    "SiglipImageProcessor": {"size": SQUARE, "do_rescale": False, "do_normalize": False},
}


@pytest.mark.parametrize("kind", list(STATED))
def test_pixels_are_what_the_models_own_processor_gives(kind: str) -> None:
    import transformers

    processor: Any = getattr(transformers, f"{kind}Pil")(**STATED[kind])
    settings = stated_pixels(processor.to_dict(), None, 3, "a folder")
    for size in ((24, 24), (31, 14), (7, 40)):
        values = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        image = PIL.Image.fromarray(values)
        wanted = processor(image, return_tensors="pt")["pixel_values"][0].numpy()
        found = pixels_for(settings)(image).numpy()
        assert found.shape == wanted.shape == (3, 12, 12)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_not_done_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    stated = {"size": {"shortest_edge": 24}, "crop_pct": 0.875, "do_pad": False, "resample": 17}
    with caplog.at_level(logging.WARNING, "drumline"):
        assert stated_pixels(stated, None, 3, "here") == ScaledPixels(24, 3, to=24)
    assert [record.getMessage() for record in caplog.records] == [
        "here states crop_pct, which is not done with images here",
        "here states resample 17, which is not known: it is bilinear",
    ]


def test_without_a_size_in_the_file_it_is_the_models() -> None:
    assert stated_pixels({}, 32, 1, "here") == PixelSettings(32, 1)
    assert stated_pixels({"do_resize": False}, 32, 1, "here") == ScaledPixels(32, 1)
    with pytest.raises(ConfigError, match="here does not say what size"):
        stated_pixels({}, None, 1, "here")


@pytest.mark.parametrize("stated", [{"size": {"height": 8, "width": 4}}, {"size": [4, 8]}])
def test_what_is_no_square_is_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no squares"):
        stated_pixels(stated, None, 3, "here")


def test_sizes_as_they_are_stated() -> None:
    assert [side_of(size) for size in ({"shortest_edge": 224}, [32, 32], 16, None)] == [224, 32, 16, None]
    assert scaled_to({"size": 24, "feature_extractor_type": "ViTFeatureExtractor"}) == (24, 24)
    assert scaled_to({"size": 24, "feature_extractor_type": "CLIPFeatureExtractor"}) == 24
    assert scaled_to({"size": 24, "do_resize": False}) is None
    assert scaled_to({"size": {"height": 8, "width": 9}}) == (9, 8)
