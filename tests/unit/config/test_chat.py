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
        ("tokens=0", "tokens: input should be greater than 0"),
        ("device=tpu", "device: input should be"),
        ("warmth=1", "--set warmth=1 is not known"),
        ("raw", "--set raw is not known"),
    ],
)
def test_what_cannot_be_meant_is_refused(override: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        chat_settings([override])
