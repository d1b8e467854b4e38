"""Images before a classifier: as pixels they are what training sees, and a damaged one is its row's error alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

from drumline.data.images import Pixels, PixelSettings
from drumline.errors import ConfigError
from drumline.infer.classify import ClassifyPredictor, Labels
from drumline.infer.images import ImageClassifier, pixel_settings_of
from drumline.infer.loading import make_predictor
from drumline.infer.records import ERROR, Row
from drumline.models.cnn import Cnn
from tests.unit.infer.tiny_encoders import CPU, answers, config_for, prepared

SIZE = 16
NAMES = ("calm", "rough")
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """Four images of several sizes."""
    folder, found = tmp_path_factory.mktemp("images"), []
    for number, size in enumerate(((16, 16), (40, 20), (9, 33), (64, 64))):
        values = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        PIL.Image.fromarray(values).save(folder / f"{number}.png")
        found.append(Row(number, {"path": str(folder / f"{number}.png"), "label": "calm"}))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=SIZE,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=0.3,
        id2label=dict(enumerate(NAMES)),
        label2id={"calm": 0, "rough": 1},
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    stated = {"image_mean": MEAN, "image_std": STD, "size": {"height": SIZE, "width": SIZE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(stated))
    return folder


def test_a_model_of_images_classifies_files(folder: Path, images: list[Row]) -> None:
    predictor = make_predictor(config_for(folder, {"kind": "classify"}), CPU)
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    pixels = Pixels(PixelSettings(SIZE, 3, MEAN, STD))
    for row, answer in zip(images, answers(predictor, images), strict=True):
        with torch.no_grad():
            # All of the image, whatever its form: so does transformers' own processor with such a file.
            square = PIL.Image.open(row.values["path"]).resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR)
            shares = model(pixel_values=pixels(square)[None]).logits[0].softmax(-1)
        assert answer["prediction"] == NAMES[int(shares.argmax())]
        assert list(answer["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-5)


def cnn(max_rows: int = 8) -> Any:
    torch.manual_seed(0)
    model = Cnn(3, 2, width=4, num_stages=2).eval()
    return ClassifyPredictor(
        ImageClassifier(model, PixelSettings(SIZE, 3), "image", CPU, max_rows=max_rows), Labels(NAMES, "one")
    )


def test_rows_that_are_only_planned_hold_no_pixels_and_get_the_same_answers(images: list[Row]) -> None:
    planned, ready = prepared(cnn(max_rows=2), images), prepared(cnn(), images)
    assert [row.payload.nbytes for row in planned] == [0, 0, 0, 0]
    assert all(row.payload.nbytes == 3 * SIZE * SIZE * 4 for row in ready)
    assert cnn().run(planned, 1) == cnn().run(ready, 1)
    assert cnn().run(ready, 1) == cnn().run(planned, 1)


def test_who_is_filled_in_for_changes_no_byte(images: list[Row]) -> None:
    predictor = cnn()
    rows = prepared(predictor, images)
    assert predictor.run([None, rows[1], None, None], 1) == predictor.run(rows, 1)[1:2]


def test_what_is_no_image_is_a_problem_and_a_damaged_one_an_error(images: list[Row], tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    whole = Path(images[3].values["path"]).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    predictor = cnn()
    rows = [Row(0, {"label": "x"}), Row(1, {"image": str(tmp_path / "text.png")}), Row(2, {"path": "/no/such.png"})]
    no_field, no_image, absent = predictor.prepare(rows)
    assert "no field with an image's path: none of image, path" in no_field
    assert no_image == f"the image {tmp_path / 'text.png'} cannot be read"
    assert absent == "the image /no/such.png cannot be read"
    mixed = prepared(predictor, [Row(0, {"path": str(tmp_path / "cut.png")}), images[0]])
    cut, good = predictor.run(mixed, 1)
    assert "cut.png cannot be read" in cut[ERROR]
    assert good["prediction"] in NAMES


def test_sizes_as_they_are_stated(tmp_path: Path) -> None:
    config = transformers.ViTConfig(image_size=32)
    assert pixel_settings_of(tmp_path, config).size == 32
    stated = {"size": {"shortest_edge": 40}, "crop_size": 24, "do_center_crop": True, "do_normalize": False}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    found = pixel_settings_of(tmp_path, config)
    assert (found.size, tuple(found.mean), tuple(found.std)) == (24, (0.0,), (1.0,))
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        pixel_settings_of(tmp_path, config)


def test_an_image_elsewhere_is_as_one_that_is_not_there(folder: Path, images: list[Row], tmp_path: Path) -> None:
    inside = Path(images[0].values["path"]).parent
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/link.png").symlink_to(images[0].values["path"])
    rows = [images[0], Row(1, {"path": str(tmp_path / "roots/link.png")}), Row(2, {"path": str(inside / "none.png")})]

    def told(*roots: Path) -> list[str | None]:
        config = config_for(folder, {"kind": "classify"}, rows={"files": ["x"], "image_roots": roots})
        return [each if isinstance(each, str) else None for each in make_predictor(config, CPU).prepare(rows)]

    missing = [f"the image {row.values['path']} cannot be read" for row in rows]
    assert told(inside) == [None, None, missing[2]]
    assert told(tmp_path / "roots") == missing
    assert told() == missing
