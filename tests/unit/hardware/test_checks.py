from __future__ import annotations

from typing import Any

import pytest

from drumline.hardware.checks import Check, checks

GIB = 1 << 30


def gpu(uuid: str, cuda_index: int | None, capability: tuple[int, int] | None = (9, 0)) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": "NVIDIA H100 80GB HBM3",
        "index": 0,
        "memory_bytes": 80 * GIB,
        "compute_capability": capability,
        "cuda_index": cuda_index,
    }


def good() -> dict[str, Any]:
    """Facts of a healthy machine with two GPUs."""
    return {
        "packages": {"torch": "2.11.0+cu130"},
        "host": {"hostname": "node1"},
        "addresses": ["192.0.2.1"],
        "limits": {
            "open_files": {"soft": 65536, "hard": 65536},
            "shared_memory": {"size_bytes": 64 * GIB, "free_bytes": 60 * GIB},
            "working_directory": {"size_bytes": 900 * GIB, "free_bytes": 500 * GIB},
        },
        "gpus": [gpu("GPU-aa", 0), gpu("GPU-bb", 1)],
        "gpu_source": "nvml 580.159.04",
        "gpu_problems": [],
        "gpu_fault": None,
        "driver": "580.159.04",
        "network": {"interfaces": [], "nccl_interface": "eth0", "nccl_interface_reason": "the first"},
        "torch": {
            "version": "2.11.0+cu130",
            "cuda": "13.0",
            "cudnn": 91900,
            "nccl": "2.28.9",
            "backends": ["nccl", "gloo"],
            "arch_list": ["sm_80", "sm_90", "sm_100"],
            "devices": [
                {"uuid": "aa", "name": "NVIDIA H100 80GB HBM3"},
                {"uuid": "bb", "name": "NVIDIA H100 80GB HBM3"},
            ],
        },
    }


def without_gpu(facts: dict[str, Any], code: int | None = 9) -> None:
    facts.update(gpus=[], driver=None, gpu_source="none", gpu_fault={"reason": "a reason", "code": code})
    facts["torch"].update(devices=[])


def bad(facts: dict[str, Any]) -> list[Check]:
    return [check for check in checks(facts) if check.status != "ok"]


def test_a_healthy_machine_has_no_complaint() -> None:
    assert bad(good()) == []
    assert {check.name for check in checks(good())} >= {"gpus", "torch", "cuda", "nccl", "shared memory", "open files"}


def test_a_machine_without_gpu_has_no_complaint() -> None:
    facts = good()
    without_gpu(facts)
    facts["packages"]["torch"] = "2.13.0+cpu"
    facts["torch"].update(cuda=None, nccl=None, backends=["gloo"], arch_list=[])
    assert bad(facts) == []


def change(facts: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for parent in parents:
        facts = facts[parent]
    facts[last] = value


@pytest.mark.parametrize(
    ("path", "value", "name", "status", "words"),
    [
        ("packages/torch", None, "torch", "fail", "not installed"),
        ("packages/torch", "2.10.1+cu128", "torch", "fail", "older than 2.11"),
        ("packages/torch", "1.13.1", "torch", "fail", "older than 2.11"),
        ("torch/cuda", None, "torch build", "fail", "built without CUDA"),
        ("torch/devices", {"error": "RuntimeError: driver too old"}, "cuda", "fail", "driver too old"),
        ("torch/arch_list", ["sm_100", "sm_120"], "architecture", "fail", "no code for NVIDIA H100"),
        ("torch/devices", [{"uuid": "bb"}, {"uuid": "aa"}], "gpu order", "warn", "GPU-bb, GPU-aa"),
        ("torch/devices", [{"uuid": "aa"}], "gpu order", "warn", "GPU-aa where GPU-aa, GPU-bb"),
        ("torch/backends", ["gloo"], "nccl", "fail", "no NCCL"),
        ("gpu_problems", ["GPU 2 left out: lost"], "gpus", "warn", "GPU 2 left out"),
        ("network/nccl_interface", None, "network interface", "warn", "the first"),
        ("addresses", [], "host name", "warn", "node1 resolves to no address"),
        ("limits/shared_memory", {"size_bytes": 64 << 20, "free_bytes": 64 << 20}, "shared memory", "warn", "0.06 GiB"),
        (
            "limits/shared_memory",
            {"size_bytes": 8 * GIB, "free_bytes": 1 << 20},
            "shared memory",
            "warn",
            "0.00 GiB of",
        ),
        ("limits/open_files", {"soft": 1024, "hard": 2048}, "open files", "warn", "at most 2048"),
        ("limits/working_directory", {"size_bytes": GIB, "free_bytes": GIB}, "disk", "warn", "1.0 GiB free"),
    ],
)
def test_each_fault_raises_exactly_its_own_check_with_a_fix(
    path: str, value: Any, name: str, status: str, words: str
) -> None:
    facts = good()
    change(facts, path, value)
    (check,) = bad(facts)
    assert (check.name, check.status) == (name, status)
    assert words in check.message
    assert check.fix


def test_a_torch_that_does_not_start_is_the_only_complaint() -> None:
    facts = good()
    facts["torch"] = {"error": "torch gave no answer within 120 s"}
    assert [(check.name, check.message) for check in bad(facts)] == [("torch", "torch gave no answer within 120 s")]


def test_a_cpu_build_beside_gpus_is_seen_without_asking_torch() -> None:
    facts = good()
    facts["packages"]["torch"] = "2.13.0+cpu"
    del facts["torch"], facts["addresses"]
    assert [(check.name, check.status) for check in bad(facts)] == [("torch build", "fail")]


@pytest.mark.parametrize(
    ("code", "words"), [(18, "reboot"), (4, "/dev/nvidia"), (None, "pip install nvidia-ml-py"), (999, "nvidia-smi")]
)
def test_a_driver_that_refuses_fails_with_its_own_fix(code: int | None, words: str) -> None:
    facts = good()
    without_gpu(facts, code)
    (check,) = bad(facts)
    assert (check.name, check.status) == ("gpus", "fail")
    assert check.fix and words in check.fix


def test_gpus_that_are_all_hidden_are_a_warning() -> None:
    facts = good()
    facts["gpus"] = [gpu("GPU-aa", None)]
    facts["gpu_source"] = "nvml 580; CUDA_VISIBLE_DEVICES is empty"
    facts["torch"]["devices"] = []
    (check,) = bad(facts)
    assert check.name == "gpus" and "is empty" in check.message


def test_the_shared_memory_fix_names_the_flag() -> None:
    facts = good()
    facts["limits"]["shared_memory"] = {"size_bytes": 64 << 20, "free_bytes": 0}
    (check,) = bad(facts)
    assert check.fix and "--shm-size" in check.fix


@pytest.mark.parametrize(("hard", "words"), [(None, "without limit"), (1048576, "up to 1048576")])
def test_a_low_soft_limit_on_open_files_is_fine_where_a_run_can_raise_it(hard: int | None, words: str) -> None:
    facts = good()
    facts["limits"]["open_files"] = {"soft": 256, "hard": hard}
    assert bad(facts) == []
    (check,) = [check for check in checks(facts) if check.name == "open files"]
    assert check.message.startswith("256") and words in check.message


def test_the_open_files_fix_names_the_flag() -> None:
    facts = good()
    facts["limits"]["open_files"] = {"soft": 256, "hard": 256}
    (check,) = bad(facts)
    assert check.fix and "--ulimit nofile=65536" in check.fix


def test_no_limit_on_open_files_is_fine() -> None:
    facts = good()
    facts["limits"]["open_files"] = {"soft": None, "hard": None}
    assert bad(facts) == []


@pytest.mark.parametrize(
    ("capability", "arch_list", "runs"),
    [
        ((9, 0), ["sm_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((8, 9), ["sm_86"], True),
        ((8, 0), ["sm_86"], False),
        ((7, 0), ["sm_75", "sm_80"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100"], True),
        ((10, 0), ["sm_120"], False),
        ((8, 0), ["gfx90a"], False),
        ((8, 0), [], True),
        (None, ["sm_120"], True),
    ],
)
def test_architectures(capability: tuple[int, int] | None, arch_list: list[str], runs: bool) -> None:
    facts = good()
    facts["gpus"] = [gpu("GPU-aa", 0, capability)]
    facts["torch"]["devices"] = [{"uuid": "aa"}]
    facts["torch"]["arch_list"] = arch_list
    assert ("architecture" not in {check.name for check in bad(facts)}) is runs


def test_mig_instances_are_not_compared_with_torchs_uuids() -> None:
    facts = good()
    facts["gpus"] = [gpu("MIG-aa", 0)]
    facts["torch"]["devices"] = [{"uuid": "cc"}]
    assert bad(facts) == []
