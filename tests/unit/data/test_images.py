"""Images as the numbers that a model takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from drumline.data.images import Pixels, PixelSettings, open_image, reads_as_image
from drumline.data.seeds import seed_streams
from drumline.errors import ConfigError, DataError


def ramp(width: int, height: int) -> Image.Image:
    """A grey image whose value is its column."""
    return Image.fromarray(np.tile(np.arange(width, dtype=np.uint8), (height, 1)))


def values(pixels: torch.Tensor) -> torch.Tensor:
    """Back to 0 to 255, from mean and standard deviation 0.5."""
    return ((pixels * 0.5 + 0.5) * 255).round()


def test_an_image_of_the_right_size_is_taken_value_by_value(tmp_path: Path) -> None:
    ramp(8, 8).save(tmp_path / "a.png")
    pixels = Pixels(PixelSettings(8, 1))(str(tmp_path / "a.png"))
    assert (pixels.dtype, pixels.shape) == (torch.float32, (1, 8, 8))
    assert values(pixels)[0, 3].tolist() == list(range(8))
    assert torch.equal(pixels, Pixels(PixelSettings(8, 1))(ramp(8, 8)))


def test_it_is_cut_in_the_middle_and_scaled() -> None:
    wide = values(Pixels(PixelSettings(4, 1))(ramp(12, 4)))[0]
    assert wide[0].tolist() == [4, 5, 6, 7]
    half = values(Pixels(PixelSettings(2, 1))(ramp(4, 4)))[0]
    assert half[0].tolist() == [1, 2]  # means of two by two, where a bare triangle would take in neighbours too


def test_mean_and_standard_deviation_by_channel() -> None:
    image = Image.new("RGB", (2, 2), (255, 0, 51))
    pixels = Pixels(PixelSettings(2, 3, (0.5, 0.0, 0.2), (0.5, 1.0, 2.0)))(image)
    torch.testing.assert_close(pixels[:, 0, 0], torch.tensor([1.0, 0.0, 0.0]))
    with pytest.raises(ConfigError, match=r"data\.mean has 2 values, and images have 3 channels"):
        PixelSettings(2, 3, (0.5, 0.5))
    with pytest.raises(ConfigError, match=r"data\.std has 3 values, and images have 1 channels"):
        PixelSettings(2, 1, (0.5,), (0.5, 0.5, 0.5))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "LA", "YCbCr"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image_has_the_channels_that_are_asked_for(mode: str, channels: int) -> None:
    white = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    pixels = values(Pixels(PixelSettings(4, channels))(white))
    assert pixels.shape == (channels, 4, 4)
    assert float(pixels.min()) >= 254


def test_sixteen_bits_are_scaled_not_cut_off(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 32768, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert values(Pixels(PixelSettings(2, 1))(str(tmp_path / "deep.png"))).unique().tolist() == [128]


def test_a_transparent_palette_gives_no_warning(tmp_path: Path) -> None:
    image = ramp(4, 4).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    assert Pixels(PixelSettings(4, 3))(tmp_path / "a.png").shape == (3, 4, 4)


def test_it_is_turned_as_its_exif_record_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter, clockwise
    ramp(4, 4).save(tmp_path / "a.png", exif=exif)
    turned = values(Pixels(PixelSettings(4, 1))(tmp_path / "a.png"))[0]
    assert turned[:, 0].tolist() == [0, 1, 2, 3]


def test_flip_and_shift_follow_torchs_stream() -> None:
    pixels = Pixels(PixelSettings(8, 1, flip=True, shift=2))

    def draw(key: int) -> list[torch.Tensor]:
        seed_streams(key)
        return [pixels(ramp(8, 8)) for _ in range(40)]

    first, again, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    rows = [values(image)[0, 0].tolist() for image in first]
    mirrored = [row for row in rows if row[3] > row[4]]
    assert 8 < len(mirrored) < 32
    # Moved by -2 to 2, with the edge's value in what comes in.
    assert {tuple(row) for row in rows if row not in mirrored} == {
        (0, 0, 0, 1, 2, 3, 4, 5),
        (0, 0, 1, 2, 3, 4, 5, 6),
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 2, 3, 4, 5, 6, 7, 7),
        (2, 3, 4, 5, 6, 7, 7, 7),
    }


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    page = tmp_path / "error.png"
    page.write_text("<html>not found</html>")
    short = tmp_path / "short.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8)).save(short)
    short.write_bytes(short.read_bytes()[:2000])
    assert not reads_as_image(page)
    assert reads_as_image(short)  # it begins well
    for path in (page, short, tmp_path / "absent.png"):
        with pytest.raises(DataError, match=rf"the image .*{path.name} cannot be read: .*\n  fix: remove the file"):
            open_image(path)
    with pytest.raises(DataError, match="a int is no image"):
        open_image(3)
