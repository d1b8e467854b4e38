"""What a launcher said of its choice of GPUs stays in the plan that the workers complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from drumline.engine.start import with_choice
from drumline.plan.resolve import resolve
from drumline.rundir import RunDir, write_json
from tests.unit.plan.machines import h100s, run, world


def test_what_was_left_out_stays_in_the_plan(tmp_path: Path) -> None:
    directory = RunDir.create(tmp_path / "run")
    plan = resolve(run(), h100s(2), world(2))
    assert with_choice(plan, directory) is plan
    chosen = resolve(run(), replace(h100s(2), left_out=("GPU 7: taken: process 9 computes on it",)))
    assert chosen.reasons["gpus"].endswith("; left out: GPU 7: taken: process 9 computes on it")
    write_json(directory.plan, chosen.to_json())
    assert with_choice(plan, directory).reasons == {**plan.reasons, "gpus": chosen.reasons["gpus"]}
    # Of other GPUs, as before a restart that left one out, it says nothing.
    one = resolve(run(), h100s(1), world(1))
    assert with_choice(one, directory) is one
