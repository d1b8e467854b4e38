"""Every refused combination of how the model is computed, with what it says; and its neighbours, which are not."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.errors import ConfigError
from drumline.hardware.records import Hardware
from drumline.plan.resolve import resolve
from tests.unit.plan.machines import h100s, machine, run

CPU = machine()
Sections = dict[str, dict[str, Any]]
HALF = {"train": {"optimizer": {"state_precision": "bf16"}}}


def optimizer(**settings: Any) -> Sections:
    return {"train": {"optimizer": {"state_precision": "bf16", **settings}}}


def products(kind: str, **train: Any) -> Sections:
    return {"train": {"linear": {"products": kind}, **train}}


def graphs(**sections: Any) -> Sections:
    return {"train": {"cuda_graphs": True, "compile": "whole", **sections.pop("train", {})}, **sections}


@pytest.mark.parametrize(
    ("hardware", "sections", "parts"),
    [
        (
            CPU,
            {"train": {"checkpointing": {"kind": "full", "every": 2}}},
            ["train.checkpointing.every: 2, and train.checkpointing.kind is full", "to selective, or leave it out"],
        ),
        (
            CPU,
            {"train": {"checkpointing": {"kind": "selective", "budget": 0.25}}},
            ["train.checkpointing.budget: 0.25, and train.checkpointing.kind is selective", "to budget, or leave it"],
        ),
        (
            CPU,
            {"train": {"checkpointing": {"kind": "budget"}, "compile": "blocks"}},
            ["train.checkpointing.kind: budget", "train.compile is blocks", "set train.compile to whole"],
        ),
        (CPU, {"train": {"linear": {"skip": ["head"]}}}, ["train.linear.skip: names layers", "products is default"]),
        (CPU, products("float8"), ["train.linear.products: float8 needs an NVIDIA GPU", "no NVIDIA driver"]),
        (
            machine((8, 0)),
            products("float8"),
            ["float8 needs compute capability 8.9 (Ada), and GPU 0, Card 0, has 8.0", "set it to default"],
        ),
        (machine((9, 0), (7, 5)), products("int8"), ["8.0 (Ampere), and GPU 1, Card 1, has 7.5"]),
        (machine((7, 5)), products("sparse_24"), ["sparse_24 needs compute capability 8.0"]),
        (
            h100s(1),
            products("float8_rowwise", precision="fp32"),
            ["float8_rowwise, whose results are in half precision, and train.precision is fp32", "auto or bf16"],
        ),
        (h100s(1), products("int8", precision="fp16"), ["train.precision is fp16"]),
        (CPU, graphs(), ["train.cuda_graphs: records GPU work, and the run is on the CPU", "leave it off"]),
        (
            h100s(1),
            graphs(train={"compile": "none"}),
            ["train.cuda_graphs: records compiled code, and train.compile is none", "whole or blocks"],
        ),
        (h100s(2), graphs(parallel={"kind": "fsdp"}), ["train.cuda_graphs: a recorded graph reads", "ddp or single"]),
        (h100s(2), graphs(parallel={"kind": "data_parallel"}), ["train.cuda_graphs: torch records", "a thread a GPU"]),
        (
            CPU,
            optimizer(name="sgd"),
            ["train.optimizer.state_precision: bf16 is for AdamW's moments", "name is sgd", "name to adamw"],
        ),
        (
            CPU,
            optimizer(state_precision="fp16", betas=[0.9, 0.999]),
            ["state_precision: fp16, and a decay rate of 0.999", "0.99 or less, such as [0.9, 0.95]"],
        ),
        (h100s(1), products("int8", deterministic=True), ["train.deterministic: true, and the kernel of int8"]),
        (
            CPU,
            {"task": {"kind": "language_modelling", "chunked_loss": True}, "model": {"kind": "python", "file": "m.py"}},
            ["task.chunked_loss: needs a model", "model.kind is python", "set model.kind to decoder"],
        ),
    ],
)
def test_refused(hardware: Hardware, sections: Sections, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(run(**sections), hardware, None)
    message = str(caught.value)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("hardware", "sections"),
    [
        (CPU, {"train": {"checkpointing": {"kind": "selective", "every": 2}}}),
        (CPU, {"train": {"checkpointing": {"kind": "full"}}}),
        (CPU, {"train": {"checkpointing": {"kind": "budget", "budget": 0.25}, "compile": "whole"}}),
        (h100s(1), {"train": {"linear": {"products": "float8", "skip": ["head"]}}}),
        (machine((8, 9)), products("float8_rowwise")),
        (machine((8, 0)), products("sparse_24", precision="fp16")),
        (machine(None), products("float8")),
        (h100s(1), products("float8", deterministic=True)),
        (h100s(2), graphs()),
        (h100s(2), graphs(train={"compile": "blocks"}, parallel={"kind": "ddp"})),
        (CPU, HALF),
        (CPU, optimizer(betas=[0.9, 0.99])),
        (CPU, {"train": {"optimizer": {"betas": [0.9, 0.999]}}}),
        (CPU, {"task": {"kind": "language_modelling", "chunked_loss": True}}),
    ],
)
def test_neighbours_are_not(hardware: Hardware, sections: Sections) -> None:
    resolve(run(**sections), hardware, None)
