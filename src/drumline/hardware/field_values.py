"""NVML's field values: several numbers about one GPU in one question."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from drumline.hardware.nvml import FINAL, Found, Unavailable, ask, refusal

# nvml.h, nvmlValueType_t: where a value of each type lies in the union.
_PLACES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_NOT_TOLD = Unavailable("the driver gave no value")


class Field(NamedTuple):
    """NVML_FI_* of nvml.h, and what of the GPU is meant (a link; 0xFFFFFFFF: all of them) where there are several."""

    number: int
    scope: int = 0


class Fields:
    """Field values of one GPU; those that it does not support are asked once."""

    def __init__(self) -> None:
        self._refused: dict[Field, Unavailable] = {}

    def read(self, nvml: Any, one: Found, wanted: Iterable[Field]) -> dict[Field, Any]:
        """A number for each field, or Unavailable."""
        asked = [field for field in wanted if field not in self._refused]
        told: dict[Field, Any] = {field: self._refused.get(field, _NOT_TOLD) for field in wanted}
        if not asked:
            return told
        answer = ask(nvml, "nvmlDeviceGetFieldValues", one.handle, asked)
        if isinstance(answer, Unavailable):
            if answer.code in FINAL:
                self._refused.update(dict.fromkeys(asked, answer))
            return told | dict.fromkeys(asked, answer)
        for field, value in zip(asked, answer, strict=True):
            if value.nvmlReturn:
                told[field] = refusal(int(value.nvmlReturn))
                if value.nvmlReturn in FINAL:
                    self._refused[field] = told[field]
            elif value.valueType in _PLACES:
                told[field] = getattr(value.value, _PLACES[value.valueType])
        return told
