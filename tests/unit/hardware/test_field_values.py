from __future__ import annotations

from typing import Any

import pynvml
import pytest

from drumline.hardware.field_values import Field, Fields
from drumline.hardware.nvml import Unavailable
from drumline.hardware.session import open_session
from tests.simulated_nvml import NO_PERMISSION, NOT_SUPPORTED, SimulatedGpu, SimulatedInstance, SimulatedNvml


def test_numbers_of_every_type_come_from_one_question() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a", fields={1: 1, 83: 1 << 40, 194: -2, 250: 0.5, (138, 3): 7})])
    with open_session(nvml) as session:
        (one,) = session.found()
        wanted = [Field(1), Field(83), Field(194), Field(250), Field(138, 3)]
        assert list(Fields().read(nvml, one, wanted).values()) == [1, 1 << 40, -2, 0.5, 7]
    assert nvml.calls["nvmlDeviceGetFieldValues"] == 1


@pytest.mark.parametrize("place", ["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"])
def test_a_value_lies_where_its_type_says(place: str) -> None:
    gpu = SimulatedGpu("GPU-a")
    nvml = SimulatedNvml([gpu])

    def answer(wanted: list[Any]) -> Any:
        values = (pynvml.c_nvmlFieldValue_t * 1)()
        values[0].valueType = ["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"].index(place)
        setattr(values[0].value, place, 9)
        return values

    gpu.values["nvmlDeviceGetFieldValues"] = answer
    with open_session(nvml) as session:
        assert Fields().read(nvml, session.found()[0], [Field(5)]) == {Field(5): 9}


def test_what_is_not_supported_is_asked_once() -> None:
    gpu = SimulatedGpu("GPU-a", fields={1: 1})
    nvml = SimulatedNvml([gpu])
    refused = Unavailable("not supported", NOT_SUPPORTED)
    with open_session(nvml) as session:
        (one,), fields = session.found(), Fields()
        assert fields.read(nvml, one, [Field(1), Field(82)]) == {Field(1): 1, Field(82): refused}
        gpu.fields[82] = 40
        assert fields.read(nvml, one, [Field(1), Field(82)]) == {Field(1): 1, Field(82): refused}
        gpu.errors["nvmlDeviceGetFieldValues"] = NO_PERMISSION
        denied = Unavailable("no permission", NO_PERMISSION)
        assert fields.read(nvml, one, [Field(1), Field(82)]) == {Field(1): denied, Field(82): refused}
        gpu.errors.clear()
        assert fields.read(nvml, one, [Field(1)]) == {Field(1): 1}
        count = nvml.calls["nvmlDeviceGetFieldValues"]
        assert fields.read(nvml, one, [Field(82)]) == {Field(82): refused}
        assert nvml.calls["nvmlDeviceGetFieldValues"] == count


def test_an_instance_that_has_no_fields_is_asked_once() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-m", instances={0: SimulatedInstance("MIG-a", 1)})])
    with open_session(nvml) as session:
        (_, one), fields = session.found(), Fields()
        for _ in range(2):
            assert fields.read(nvml, one, [Field(83)]) == {Field(83): Unavailable("not supported", 3)}
    assert nvml.calls["nvmlDeviceGetFieldValues"] == 1
