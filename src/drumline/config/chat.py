"""How answers are written in `drumline chat`: what its --set takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from drumline.config.section import Section
from drumline.errors import ConfigError


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
    values = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or name.strip() not in ChatSettings.model_fields:
            known = ", ".join(ChatSettings.model_fields)
            raise ConfigError(f"--set {override} is not known", f"set one of {known}, as in --set temperature=0")
        values[name.strip()] = yaml.safe_load(text)
    try:
        return ChatSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        field = ChatSettings.model_fields[str(first["loc"][0])]
        raise ConfigError(f"--set {name}: {first['msg'].lower()}", f"{name} is: {field.description}") from None
