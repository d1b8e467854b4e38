"""What --set takes in `drumline chat`."""

from __future__ import annotations

import pytest

from drumline.config.chat import ChatSettings, chat_settings
from drumline.errors import ConfigError


def test_values_are_yaml() -> None:
    found = chat_settings(["tokens=5", " temperature = 0.5", "raw=true", "device=cpu", "seed=3"])
    assert found == ChatSettings(tokens=5, temperature=0.5, raw=True, device="cpu", seed=3)
    assert chat_settings([]) == ChatSettings()


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("tokens=0", "--set tokens=0: tokens: wants a whole number above 0, not 0"),
        ("device=tpu", "device: wants auto or cpu, not 'tpu'"),
        ("warmth=1", "--set warmth=1: warmth: there is no such key"),
        ("raw", "write it as in --set temperature=0"),
    ],
)
def test_what_cannot_be_meant_is_refused(override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        chat_settings([override])
