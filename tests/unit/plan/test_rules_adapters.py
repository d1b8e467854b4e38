"""Every refused combination of adapters and small optimizer state, with what it says; and its neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.errors import ConfigError
from drumline.hardware.records import Hardware
from drumline.plan.resolve import resolve
from tests.unit.plan.machines import h100s, machine, run

CPU = machine()
PAGED = {"state_precision": "int8", "paged": True}
Sections = dict[str, dict[str, Any]]


def model(**settings: Any) -> Sections:
    return {"model": {"kind": "huggingface", "path": "folder", **settings}}


@pytest.mark.parametrize(
    ("hardware", "sections", "parts"),
    [
        (CPU, model(quantise="nf4"), ["model.quantise: nf4", "cannot be trained themselves", "add model.adapter: {}"]),
        (
            h100s(1),
            {"train": {"optimizer": {"paged": True}}},
            ["train.optimizer.paged: moves moments in 8 bits", "state_precision is same", "to int8, or leave it out"],
        ),
        (CPU, {"train": {"optimizer": PAGED}}, ["paged: moves moments between a GPU and the host", "on the CPU"]),
        (
            h100s(1),
            {"train": {"optimizer": PAGED}, "parallel": {"kind": "fsdp", "offload": True}},
            ["train.optimizer.paged", "parallel.offload keeps all of them there"],
        ),
        (
            CPU,
            {"train": {"optimizer": {"state_precision": "int8", "betas": [0.9, 0.999]}}},
            ["state_precision: int8, and a decay rate of 0.999", "less than 8 bits resolve"],
        ),
    ],
)
def test_what_cannot_be_is_refused(hardware: Hardware, sections: Sections, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(run(**sections), hardware)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("hardware", "sections"),
    [
        (CPU, model(quantise="nf4", adapter={})),
        (CPU, {"train": {"optimizer": {"state_precision": "int8"}}}),
        (h100s(1), {"train": {"optimizer": PAGED}}),
        (h100s(2), {"train": {"optimizer": PAGED}, "parallel": {"kind": "fsdp"}}),
    ],
)
def test_what_can_be_is_not(hardware: Hardware, sections: Sections) -> None:
    resolve(run(**sections), hardware)
