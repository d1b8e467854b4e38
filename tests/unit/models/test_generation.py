"""generation_config.json of an exported model."""

from __future__ import annotations

from pathlib import Path

from drumline.models.generation import FILE, write_generation
from drumline.rundir import read_json, write_json


def test_the_settings_of_the_model_before_stay_and_learned_ends_are_added(tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    out.mkdir()
    write_json(base / FILE, {"temperature": 0.6, "do_sample": True, "eos_token_id": 7, "_from_model_config": True})
    write_json(out / FILE, {"bos_token_id": 1, "eos_token_id": 2, "transformers_version": "5"})
    write_generation(out, base, [7, 9], pad=3)
    assert read_json(out / FILE) == {
        "bos_token_id": 1,
        "eos_token_id": [7, 9],
        "transformers_version": "5",
        "temperature": 0.6,
        "do_sample": True,
        "pad_token_id": 3,
    }


def test_one_end_is_a_number_and_none_is_left_out(tmp_path: Path) -> None:
    for ends, expected in (([4], {"eos_token_id": 4}), ([], {})):
        write_json(tmp_path / FILE, {})
        write_generation(tmp_path, None, ends)
        assert read_json(tmp_path / FILE) == expected


def test_a_model_that_does_not_write_gets_none(tmp_path: Path) -> None:
    write_generation(tmp_path, None, [4])
    assert list(tmp_path.iterdir()) == []
