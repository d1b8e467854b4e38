"""Settings of a service: defaults, then a file, then overrides, and errors that say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.config.service import ServiceConfig
from drumline.config.service_file import load_service_config
from drumline.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_a_file_there_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_service_config() == ServiceConfig(data_dir=tmp_path / "drumline-data")


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "port: 8080\naccess: {keys: required}\nfiles: {model_names: {gpt2: /m/gpt2}}\n")
    config = load_service_config(path, ["port=9000", "scheduling.ageing_s=5", "port=9001", "node=17"])
    assert (config.port, config.access.keys, config.scheduling.ageing_s, config.node) == (9001, "required", 5.0, "17")
    assert config.files.model_names == {"gpt2": Path("/m/gpt2")}


def test_the_home_folder_may_be_said_shortly() -> None:
    assert load_service_config(None, ["data_dir=~/jobs"]).data_dir == Path.home() / "jobs"


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("port: 8000\nprot: 1\n", "line 2: prot: there is no such key", "did you mean port?"),
        ("access: {keys: maybe}\n", "line 1: access.keys: wants auto, required or off", "correct the value"),
        ("limits:\n  max_txts: 1\n", "line 2: limits.max_txts: there is no such key", "did you mean limits.max_texts?"),
        ("", "the file is empty", "port: 8000"),
        ("- a\n", "a service's file is a mapping of keys to values", "key: value"),
        ("port: 70000\nport: 1\n", "line 2: port: the key stands here a second time", "keep one"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, problem: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_service_config(write(tmp_path, text))
    assert problem in str(caught.value) and fix in str(caught.value) and "service.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("port", "--set port: this is not KEY=VALUE\n  fix: write it as in --set port=8000"),
        ("port=70000", "--set port=70000: port: wants a whole number not below 0 and not above 65535, not 70000"),
        ("files.data_roots=/x", "fix: write it in brackets: [/x]"),
    ],
)
def test_a_wrong_override_is_told(override: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_service_config(None, [override])
    assert problem in str(caught.value)
