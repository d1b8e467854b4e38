"""Programs that are asked for GPUs where NVML cannot be: shell scripts in their place."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from drumline.hardware.nvidia_smi import read_with_smi
from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Gpu, Snapshot
from drumline.hardware.torch_child import read_with_torch

A = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
DOCUMENTS = Path(__file__).parents[1] / "unit" / "hardware" / "simulated_smi"
LISTING = f"""GPU 0: NVIDIA H100 80GB HBM3 (UUID: {A})
  MIG 1g.10gb     Device  0: (UUID: MIG-11111111-aaaa)
  MIG 1g.10gb     Device  1: (UUID: MIG-22222222-bbbb)
"""


def program(folder: Path, *lines: str) -> str:
    """A shell script in nvidia-smi's place."""
    path = folder / "nvidia-smi"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_program_is_asked_for_what_the_document_lacks(tmp_path: Path) -> None:
    (tmp_path / "listing").write_text(LISTING)
    script = program(
        tmp_path,
        f"echo \"$LC_ALL $*\" >> '{tmp_path}/asked'",
        'case "$1" in',
        f"-q) cat '{DOCUMENTS}/h100_with_mig.xml';;",
        f"-L) cat '{tmp_path}/listing';;",
        f"*) echo '{A}, 9.0';;",
        "esac",
    )
    snapshot = read_with_smi(program=script)
    assert isinstance(snapshot, Snapshot)
    assert [sample.gpu.uuid for sample in snapshot.gpus] == [A, "MIG-11111111-aaaa", "MIG-22222222-bbbb"]
    assert snapshot.gpus[1].gpu.compute_capability == (9, 0)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["C -q -x", "C --query-gpu=uuid,compute_cap --format=csv,noheader", "C -L"]


def test_a_program_that_fails_is_a_value_with_its_first_words(tmp_path: Path) -> None:
    words = "Failed to initialize NVML: Driver/library version mismatch"
    answer = read_with_smi(program=program(tmp_path, f"echo '{words}'", "exit 18"))
    assert answer == Unavailable(f"nvidia-smi failed (18): {words}")


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    answer = read_with_smi(0.1, program=program(tmp_path, "exec sleep 60"))
    assert isinstance(answer, Unavailable) and "gave no answer within 0." in answer.reason


def test_a_program_that_cannot_be_started_is_a_value(tmp_path: Path) -> None:
    answer = read_with_smi(program=str(tmp_path / "absent"))
    assert answer == Unavailable("nvidia-smi cannot be started: No such file or directory")


def test_one_lost_gpu_of_several_leaves_the_rest(tmp_path: Path) -> None:
    script = program(tmp_path, f"cat '{DOCUMENTS}/two_h100.xml'", "exit 15")
    snapshot = read_with_smi(program=script)
    assert isinstance(snapshot, Snapshot) and len(snapshot.gpus) == 2
    assert json.dumps(dict(snapshot.gpus[0].refused))  # plain values, fit for --json


def with_device_file(root: Path) -> Path:
    (root / "dev").mkdir()
    (root / "dev" / "nvidia0").touch()
    return root


def test_torch_is_asked_last_and_of_the_whole_machine(tmp_path: Path) -> None:
    script = """
import json, os
device = {"name": "NVIDIA H100 80GB HBM3", "uuid": "8932f937-d72c-4106-c12f-20bd9faed9f6", "memory_bytes": 85 * 10**9,
          "compute_capability": [9, 0], "pci_address": "0000:1b:00.0", "multiprocessors": 132}
assert "CUDA_VISIBLE_DEVICES" not in os.environ and os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
print(json.dumps({"version": "2.11.0+cu130", "cuda": "13.0", "devices": [device]}))
"""
    environ = {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    snapshot = read_with_torch(30, script=script, root=with_device_file(tmp_path), environ=environ)
    assert isinstance(snapshot, Snapshot)
    (sample,) = snapshot.gpus
    assert sample.gpu == Gpu(A, "NVIDIA H100 80GB HBM3", 0, 85 * 10**9, (9, 0), "0000:1b:00.0")
    assert sample.memory_used_bytes is None and sample.refused["memory_used_bytes"] == "torch does not tell"
    assert snapshot.source == "torch 2.11.0+cu130"


def test_the_real_torch_of_a_build_without_cuda_says_so(tmp_path: Path) -> None:
    """The one test here that imports torch, in its child."""
    answer = read_with_torch(60, root=with_device_file(tmp_path))
    assert isinstance(answer, Unavailable) and answer.reason.endswith("is built without CUDA")


def test_torch_is_not_imported_where_there_is_no_device_file(tmp_path: Path) -> None:
    answer = read_with_torch(60, script="raise SystemExit('asked')", root=tmp_path)
    assert answer == Unavailable("no device file of an NVIDIA GPU")
