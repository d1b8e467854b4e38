from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.cli.quickstart import counts_up_to, measured_settings
from drumline.cli.quickstart_questions import answers, write_recipe
from drumline.config.load import load_config
from drumline.errors import ConfigError
from drumline.hardware.records import Gpu, Hardware, Host

HOST = Host(8, 2**34, "here")
WITH_GPUS = Hardware(tuple(Gpu(f"GPU-{i}", "Card", i, 2**34, (9, 0)) for i in range(4)), HOST, "nvml")
WITHOUT = Hardware((), HOST, "no NVIDIA driver")


def typing(*lines: str) -> tuple[Callable[[str], str], list[str]]:
    """One who types these lines and then ends the input; and the questions that were shown."""
    coming, shown = iter(lines), []

    def read(question: str) -> str:
        shown.append(question)
        try:
            return next(coming)
        except StopIteration:
            raise EOFError from None

    return read, shown


@pytest.mark.parametrize("hardware", [WITH_GPUS, WITHOUT])
@pytest.mark.parametrize("lines", [(), ("", "", "", "", "")])
def test_five_defaults_are_the_recipe_on_every_device(hardware: Hardware, lines: tuple[str, ...]) -> None:
    read, shown = typing(*lines)
    recipe, overrides = answers(hardware, read)
    assert (recipe, len(shown)) == ("quickstart", 5)
    assert load_config(recipe, overrides) == load_config(recipe)
    assert ("How many GPUs [4]: " in shown) == bool(hardware.gpus)


def test_answers_become_settings(tmp_path: Path) -> None:
    (tmp_path / "it's mine.csv").write_text("text,label\n")
    read, _ = typing("classify_text", "2", f"{tmp_path}/*.csv", "64", "7")
    recipe, overrides = answers(WITH_GPUS, read)
    config = load_config(recipe, overrides)
    assert recipe == "classify_text"
    assert (config.hardware.count, config.train.global_batch, config.train.epochs) == (2, 64, 7)
    data = config.model_dump()["data"]
    assert (data["train"], data["eval"], data["columns"]) == ([f"{tmp_path}/*.csv"], [], {})
    named = answers(WITH_GPUS, typing("", "", f"{tmp_path}/it's mine.csv")[0])[1]
    assert load_config("quickstart", named).model_dump()["data"]["train"] == [f"{tmp_path}/it's mine.csv"]


def test_epochs_take_the_place_of_updates() -> None:
    recipe, overrides = answers(WITHOUT, typing("", "3", "", "", "2")[0])
    config = load_config(recipe, overrides)
    assert (config.train.max_steps, config.train.epochs, config.hardware.num_processes) == (None, 2, 3)


@pytest.mark.parametrize("bad", [("music",), ("", "5"), ("", "0"), ("", "", "/no/such"), ("", "", "", "-1")])
def test_a_bad_answer_is_asked_again_and_not_for_ever(bad: tuple[str, ...]) -> None:
    read, shown = typing(*bad)
    answers(WITH_GPUS, read)  # the second time the input has ended: the default
    assert len(shown) == 6
    with pytest.raises(ConfigError, match="no answer"):
        answers(WITH_GPUS, typing(*bad[:-1], *bad[-1:] * 9)[0])


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "my_recipe.yaml").write_text("mine")
    path = write_recipe("classify_images", ["train.epochs=2"], tmp_path)
    assert path.name == "my_recipe_2.yaml" and (tmp_path / "my_recipe.yaml").read_text() == "mine"
    assert load_config(path) == load_config("classify_images", ["train.epochs=2"])
    with pytest.raises(ConfigError, match="cannot be written"):
        write_recipe("quickstart", [], tmp_path / "nowhere")


def test_a_disk_that_is_full_leaves_no_half_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_recipe("quickstart", [], tmp_path)
    assert not list(tmp_path.iterdir())


def test_measurements_are_of_every_device() -> None:
    assert [counts_up_to(num) for num in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]
    (on_gpus, of_gpus), (on_cpu, of_cpu) = measured_settings(WITH_GPUS), measured_settings(WITHOUT)
    assert (on_gpus, on_cpu) == (4, 2)
    assert load_config("quickstart", of_gpus).train.global_batch == 32
    assert load_config("quickstart", of_cpu).train.global_batch == 8
