"""How answers are written in `drumline chat`: what its --set takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from drumline.config.load import apply_override, validated
from drumline.config.problem import Place
from drumline.config.section import Section
from drumline.config.source import Layer


class ChatSettings(Section):
    """How answers are written, and where."""

    tokens: PositiveInt = Field(512, description="Most tokens of an answer.")
    temperature: NonNegativeFloat | None = Field(
        None, description="0: always the likeliest token; none: as the model's generation config says."
    )
    seed: NonNegativeInt | None = Field(None, description="Of the random stream, for the same answer each time.")
    raw: bool = Field(False, description="Go on from the text as it stands, without chat template.")
    device: Literal["auto", "cpu"] = Field("auto", description="auto: a GPU that is free and healthy, else the CPU.")


def chat_settings(overrides: Sequence[str]) -> ChatSettings:
    """The settings that `key=value` texts come to. Raises ConfigError for a key or a value that cannot be meant."""
    layer = Layer({}, {(): Place("the defaults")})
    for override in overrides:
        apply_override(layer, override, example="temperature=0")
    return validated(layer, ChatSettings)
