from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from drumline.hardware import doctor
from drumline.hardware.doctor import SLURM_VARIABLES, VARIABLES, allowed, environment_facts
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedNvml,
)


def facts(environ: dict[str, str] | None = None, nvml: SimulatedNvml | None = None, **options: Any) -> dict[str, Any]:
    options.setdefault("deep", False)
    nvml = nvml or SimulatedNvml([], {"nvmlInit": DRIVER_NOT_LOADED})
    return environment_facts(environ=environ or {}, nvml=nvml, **options)


def never() -> dict[str, Any]:
    raise AssertionError("torch was asked")


def test_a_shallow_look_starts_no_child_and_resolves_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: never())
    found = facts(torch_facts=never)
    assert "torch" not in found and "addresses" not in found
    assert found["packages"]["torch"] and found["packages"]["numpy"]


def test_a_deep_look_asks_torch_and_the_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry, entry])
    found = facts(deep=True, torch_facts=lambda: {"version": "2.11.0"})
    assert found["torch"] == {"version": "2.11.0"}
    assert found["addresses"] == ["192.0.2.7"]


def test_a_name_that_does_not_resolve_has_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert doctor.resolve("nowhere") == []


def test_facts_are_json() -> None:
    found = facts(nvml=SimulatedNvml([SimulatedGpu("GPU-a", instances={0: SimulatedInstance("MIG-a", 1)})]))
    again = json.loads(json.dumps(found))
    assert [gpu["uuid"] for gpu in again["gpus"]] == ["GPU-a", "MIG-a"]
    assert again["gpus"][0]["compute_capability"] == [9, 0]


def test_gpus_are_all_there_with_their_place_in_cudas_order() -> None:
    gpus = [
        SimulatedGpu("GPU-a"),
        SimulatedGpu("GPU-b"),
        SimulatedGpu("GPU-c", errors={"nvmlDeviceGetUUID": GPU_IS_LOST}),
    ]
    found = facts({"CUDA_VISIBLE_DEVICES": "1"}, SimulatedNvml(gpus))
    assert [(gpu["uuid"], gpu["cuda_index"]) for gpu in found["gpus"]] == [("GPU-a", None), ("GPU-b", 0)]
    assert found["driver"] == "580.159.04"
    assert found["gpu_fault"] is None
    assert found["gpu_problems"] == ["GPU 2 left out: the GPU is lost: it fell off the bus"]
    assert "whitepaper" in found["gpus"][0]["peak_source"]


def test_a_missing_driver_is_a_fact() -> None:
    found = facts()
    assert found["gpus"] == [] and found["driver"] is None
    assert found["gpu_fault"] == {"reason": "no NVIDIA driver is loaded", "code": DRIVER_NOT_LOADED}


def test_limits_come_from_the_roots_control_groups_and_shared_memory(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1073741824\n")
    found = facts(root=tmp_path)
    assert found["host"]["memory_bytes"] == 1 << 30 < found["host"]["memory_bytes_of_machine"]
    assert found["limits"]["shared_memory"] is None
    assert found["limits"]["working_directory"]["size_bytes"] > 0


def test_variables_are_taken_by_whole_names_only() -> None:
    environ = {
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "eth0",
        "SLURM_JOB_ID": "17",
        "OMP_NUM_THREADS": "4",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:128",
        "SLURM_JOB_NODELIST": "gpu-rack07-node[001-016,020]",
        "CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1",
        "TORCHELASTIC_RUN_ID": "0d9b2a7e-63c1-4c52-8f0e-3f1f5f4a6b7c",
        "MASTER_ADDR": "desk-workstation1.example.org",
    }
    found = facts({**environ, "NCCL_X": "1", "CUDA_ANYTHING": "2", "SLURM_JOB_USER": "ann", "HOME": "/home/ann"})
    assert found["variables"] | found["slurm"] == environ


SECRETS = {
    "AWS_SECRET": "value-of-aws",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "hf_abcdefghijklmnop",
    "WANDB_API_KEY": "value-of-wandb",
    "NCCL_X": "value-of-nccl-x",
    "TORCH_PASSWORD": "value-of-torch",
    "SLURM_JWT": "value-of-jwt",
    # Pasted into the wrong variable: the names are allowed, the values are not.
    "NCCL_DEBUG": "hf_qrstuvwxyzABCDEF",
    "NCCL_NET": "AKIAIOSFODNN7EXAMPLE",
    "MASTER_ADDR": "https://ann:pass-of-ann@host",
    "NCCL_TOPO_FILE": "my-secret-name",
    "TORCH_LOGS": "f3a9c1d27b604e58a1c2d3e4f5a6b7c8",
    "SLURM_JOB_PARTITION": "Bearer abc",
}


@pytest.mark.parametrize("deep", [False, True])
def test_no_secret_comes_out(deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    # The real environment, as users run it; the child inherits it and says nothing of it.
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    text = json.dumps(environment_facts(deep, nvml=nvml, torch_facts=lambda: {"error": "not asked"}))
    assert [value for value in SECRETS.values() if value in text] == []
    assert "AWS_SECRET" not in text and "HF_TOKEN" not in text and "NCCL_X" not in text
    assert '"NCCL_DEBUG": "(looks like a secret)"' in text


def test_the_allow_lists_hold_no_name_that_sounds_like_a_secret() -> None:
    names = VARIABLES + SLURM_VARIABLES
    assert len(names) == len(set(names))
    words = {word for name in names for word in name.split("_")}
    assert not words & {"TOKEN", "SECRET", "KEY", "PASSWORD", "JWT", "USER", "CREDENTIALS"}


def test_unset_variables_are_absent() -> None:
    assert allowed({"A": "1", "B": "2"}, ("A", "C")) == {"A": "1"}
