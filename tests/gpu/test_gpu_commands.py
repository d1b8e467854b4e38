"""The commands on a real driver: every GPU has its values, and the table and the document agree."""

from __future__ import annotations

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from drumline.cli import gpus, monitor

pytestmark = pytest.mark.gpu


def output_of(*arguments: str) -> str:
    app = typer.Typer()
    app.callback()(lambda: None)
    for module in (gpus, monitor):
        module.register(app)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_document_holds_every_gpu_with_its_values() -> None:
    held = torch.ones(1 << 28, device="cuda")  # 1 GiB
    found = json.loads(output_of("gpus", "--json"))
    samples = {sample["gpu"]["uuid"]: sample for sample in found["snapshot"]["gpus"]}
    assert set(found["verdicts"]) == set(samples)
    mine = samples[f"GPU-{torch.cuda.get_device_properties(held.device).uuid}"]
    assert mine["memory_used_bytes"] > held.nbytes
    assert all(mine[name] is not None for name in ("power_w", "temperature_c", "utilization", "processes"))
    assert len(found["topology"]["places"]) == len(samples)


@pytest.mark.parametrize("arguments", [("gpus",), ("monitor", "--once")])
def test_the_table_has_a_line_a_gpu(arguments: tuple[str, ...]) -> None:
    count = len(json.loads(output_of("gpus", "--json"))["snapshot"]["gpus"])
    lines = output_of(*arguments).splitlines()
    assert f"{count} x " in lines[0] or f"{count} GPUs" in lines[0]
    assert all(" W " in line and " C" in line and "GiB" not in line for line in lines[2 : 2 + count])
