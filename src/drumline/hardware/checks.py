"""Verdicts on the facts of `doctor`: pure, each with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drumline.hardware.check import Check as Check
from drumline.hardware.gpu_checks import gpu_checks

Facts = Mapping[str, Any]

GIB = 1 << 30
MIN_TORCH = (2, 11)
# Loader workers hand batches over in shared memory; Docker gives 64 MiB unless told otherwise.
MIN_SHARED_MEMORY_BYTES = GIB
# Loader workers keep a descriptor for each tensor in flight; the usual default of 1024 runs out in long evaluations.
MIN_OPEN_FILES = 4096
MIN_FREE_DISK_BYTES = 5 * GIB
# NVML codes for "driver not loaded" and "library not found": a machine without GPU, and nothing wrong with it.
_NO_DRIVER = (9, 12)
_FAULT_FIXES = {
    4: "give this user, or the container, access to /dev/nvidia*",
    18: "reboot, or unload and load the nvidia kernel modules",
}


def checks(facts: Facts) -> list[Check]:
    """Pure: a verdict on each thing known to break or slow runs; one whose facts were not asked for is absent."""
    found = [
        _gpus(facts),
        *gpu_checks(facts),
        _torch_version(facts),
        _torch_build(facts),
        _cuda(facts),
        _architectures(facts),
        _order(facts),
        _nccl(facts),
        _interface(facts),
        _hostname(facts),
        _shared_memory(facts),
        _open_files(facts),
        _disk(facts),
    ]
    return [check for check in found if check is not None]


def _visible(facts: Facts) -> list[dict[str, Any]]:
    """The GPUs that CUDA should show this process, in its order."""
    shown = [gpu for gpu in facts["gpus"] if gpu["cuda_index"] is not None]
    return sorted(shown, key=lambda gpu: int(gpu["cuda_index"]))


def _torch(facts: Facts) -> dict[str, Any] | None:
    """The torch child's answer, where it was asked and answered."""
    answer = facts.get("torch")
    return answer if isinstance(answer, dict) and "error" not in answer else None


def _gpus(facts: Facts) -> Check:
    name, fault, gpus = "gpus", facts["gpu_fault"], facts["gpus"]
    if fault is not None and fault["code"] in _NO_DRIVER:
        return Check(name, "ok", f"no GPU: {fault['reason']}; runs use the CPU")
    if fault is not None:
        fix = _FAULT_FIXES.get(fault["code"], "see what nvidia-smi says; pip install nvidia-ml-py if it is missing")
        return Check(name, "fail", f"GPUs cannot be read: {fault['reason']}", fix)
    if facts["gpu_problems"]:
        fix = "reset that GPU (nvidia-smi --gpu-reset) or reboot; a batch system may also withhold it from this job"
        return Check(name, "warn", "; ".join(facts["gpu_problems"]), fix)
    if gpus and not _visible(facts):
        fix = "unset CUDA_VISIBLE_DEVICES, or name GPUs that exist"
        return Check(name, "warn", f"this process may use no GPU: {facts['gpu_source']}", fix)
    return Check(name, "ok", f"{len(_visible(facts))} usable ({facts['gpu_source']})")


def _torch_version(facts: Facts) -> Check:
    wanted = ".".join(map(str, MIN_TORCH))
    fix = f"pip install 'torch>={wanted}'"
    version = facts["packages"]["torch"]
    if version is None:
        return Check("torch", "fail", "torch is not installed", fix)
    answer = facts.get("torch")
    if answer and "error" in answer:
        return Check("torch", "fail", str(answer["error"]), "run python -c 'import torch' and install torch anew")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < MIN_TORCH:
        return Check("torch", "fail", f"torch {version} is older than {wanted}", fix)
    return Check("torch", "ok", f"torch {version}")


def _torch_build(facts: Facts) -> Check | None:
    version, answer = facts["packages"]["torch"], _torch(facts)
    if version is None or not facts["gpus"]:
        return None
    if "+cpu" in version or (answer is not None and answer["cuda"] is None):
        fix = "install a CUDA build of torch: https://pytorch.org/get-started/locally"
        return Check("torch build", "fail", f"there are GPUs, and torch {version} is built without CUDA", fix)
    return Check("torch build", "ok", f"built for CUDA {answer['cuda']}" if answer else f"torch {version}")


def _cuda(facts: Facts) -> Check | None:
    answer = _torch(facts)
    if answer is None or answer["cuda"] is None or not _visible(facts):
        return None
    devices = answer["devices"]
    if isinstance(devices, dict):
        fix = f"install a driver for CUDA {answer['cuda']} (found: {facts['driver']}), or a torch for that driver"
        return Check("cuda", "fail", f"CUDA does not start: {devices['error']}", fix)
    return Check("cuda", "ok", f"CUDA {answer['cuda']} starts and sees {len(devices)} GPUs")


def _architectures(facts: Facts) -> Check | None:
    answer = _torch(facts)
    if answer is None or not isinstance(answer["arch_list"], list) or not answer["arch_list"]:
        return None
    old = [g for g in _visible(facts) if g["compute_capability"] and not _built_for(g, answer["arch_list"])]
    if not old:
        return None
    capability = ".".join(map(str, old[0]["compute_capability"]))
    message = f"torch {answer['version']} has no code for {old[0]['name']} (compute capability {capability})"
    return Check("architecture", "fail", message, "install a torch build whose CUDA version still has this GPU")


def _built_for(gpu: Mapping[str, Any], arch_list: list[str]) -> bool:
    """Binary code runs on its major version from its minor on, PTX on anything newer (CUDA programming guide)."""
    major, minor = gpu["compute_capability"]
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", arch)
        if match is None:
            continue
        built = (int(match[2]), int(match[3]))
        if match[4] == "a":  # architecture-specific code runs on exactly its own
            fits = built == (major, minor)
        elif match[1] == "sm":
            fits = built[0] == major and built[1] <= minor
        else:
            fits = built <= (major, minor)
        if fits:
            return True
    return False


def _order(facts: Facts) -> Check | None:
    """Whether CUDA itself shows the GPUs that the inventory worked out; MIG instances have two kinds of UUID."""
    answer = _torch(facts)
    expected = [gpu["uuid"] for gpu in _visible(facts)]
    if answer is None or not isinstance(answer["devices"], list) or any(u.startswith("MIG-") for u in expected):
        return None
    seen = [f"GPU-{device['uuid'].removeprefix('GPU-')}" for device in answer["devices"]]
    if seen == expected or not seen:
        return None
    message = f"CUDA shows {', '.join(seen)} where {', '.join(expected) or 'none'} was expected"
    return Check("gpu order", "warn", message, "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID")


def _nccl(facts: Facts) -> Check | None:
    answer = _torch(facts)
    if answer is None or len(_visible(facts)) < 2:
        return None
    if "nccl" not in answer["backends"]:
        fix = "install an official CUDA build of torch, or set parallel.backend=gloo (slow)"
        return Check("nccl", "fail", "several GPUs, and this torch has no NCCL", fix)
    return Check("nccl", "ok", f"NCCL {answer['nccl']}")


def _interface(facts: Facts) -> Check:
    network = facts["network"]
    name, reason = network["nccl_interface"], network["nccl_interface_reason"]
    if name is None:
        return Check("network interface", "warn", reason, "bring an interface up, or correct NCCL_SOCKET_IFNAME")
    return Check("network interface", "ok", f"NCCL would take {name}: {reason}")


def _hostname(facts: Facts) -> Check | None:
    if "addresses" not in facts:
        return None
    hostname, addresses = facts["host"]["hostname"], facts["addresses"]
    if not addresses:
        fix = f"add a line for {hostname} to /etc/hosts, or set MASTER_ADDR and GLOO_SOCKET_IFNAME"
        return Check("host name", "warn", f"{hostname} resolves to no address; workers may not find each other", fix)
    return Check("host name", "ok", f"{hostname} resolves to {', '.join(addresses)}")


def _shared_memory(facts: Facts) -> Check | None:
    shared = facts["limits"]["shared_memory"]
    if shared is None:
        return None
    size, free = (f"{shared[key] / GIB:.2f} GiB" for key in ("size_bytes", "free_bytes"))
    if shared["size_bytes"] < MIN_SHARED_MEMORY_BYTES:
        fix = "start the container with --shm-size=8g (or --ipc=host), or set loader.num_workers=0"
        return Check("shared memory", "warn", f"/dev/shm has {size}; loader workers may run out of it", fix)
    if shared["free_bytes"] < MIN_SHARED_MEMORY_BYTES:
        fix = "remove what ended processes left in /dev/shm, or start the container with a larger --shm-size"
        return Check("shared memory", "warn", f"/dev/shm has only {free} of {size} free", fix)
    return Check("shared memory", "ok", f"/dev/shm has {free} of {size} free")


def _open_files(facts: Facts) -> Check:
    """The hard limit counts: a run raises the soft one by itself where its loader processes need more."""
    soft, hard = facts["limits"]["open_files"]["soft"], facts["limits"]["open_files"]["hard"]
    if soft is None or soft >= MIN_OPEN_FILES:
        return Check("open files", "ok", f"up to {'any number' if soft is None else soft}")
    if hard is None or hard >= MIN_OPEN_FILES:
        most = "without limit" if hard is None else f"up to {hard}"
        return Check("open files", "ok", f"{soft}, which runs raise where they need more, {most}")
    fix = "raise nofile in /etc/security/limits.conf, or docker run --ulimit nofile=65536"
    return Check("open files", "warn", f"at most {hard}; loader workers may run out of them", fix)


def _disk(facts: Facts) -> Check | None:
    disk = facts["limits"]["working_directory"]
    if disk is None:
        return None
    free = f"{disk['free_bytes'] / GIB:.1f} GiB free in the working directory"
    if disk["free_bytes"] < MIN_FREE_DISK_BYTES:
        return Check("disk", "warn", free, "free some space, or point run_dir to a larger disk; checkpoints need room")
    return Check("disk", "ok", free)
