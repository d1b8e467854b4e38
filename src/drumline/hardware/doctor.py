"""The facts that a bug report needs, gathered without importing torch here and without ever copying the environment."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from drumline import __version__
from drumline.hardware.gpu_facts import gpu_facts
from drumline.hardware.host import container, cpu_cores, memory_bytes, open_files, space
from drumline.hardware.inventory import read_machine, visible_gpus
from drumline.hardware.network import list_interfaces, nccl_interface
from drumline.hardware.nvml import Reading
from drumline.hardware.peaks import find_peak
from drumline.hardware.torch_child import ask_torch

_ROOT = Path("/")
PACKAGES = (
    *("torch", "numpy", "pydantic", "PyYAML", "typer", "rich", "psutil", "nvidia-ml-py"),
    *("transformers", "tokenizers", "safetensors", "accelerate", "matplotlib", "triton"),
    *("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
# Names, never patterns: what a cluster's users put under a prefix is not ours to print.
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"),
    *("CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"),
    *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_NTHREADS"),
    *("NCCL_NSOCKS_PERTHREAD", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT"),
    *("NCCL_IB_RETRY_CNT", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"),
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"),
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_TOPO_FILE"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ENABLE_MONITORING"),
    *("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_LOGS"),
    *("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "MKL_NUM_THREADS", "KMP_AFFINITY"),
    *("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)
SLURM_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_STEP_ID"),
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"),
    *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    *("SLURM_GPUS_PER_TASK", "SLURM_MEM_PER_NODE", "SLURM_RESTART_COUNT"),
)
# A value under an allowed name can still be a pasted token. GPU UUIDs, host lists and numbers are none of these.
_SECRET = re.compile(
    r"(?i:token|secret|passw|api_?key|bearer)|://[^/\s]*@|AKIA[0-9A-Z]{12}|\b(?:hf|sk|ghp|gho|glpat|xox[a-z])[_-]\w{8}"
    r"|(?=[\w+=]*\d)(?=[\w+=]*[A-Za-z])[\w+=]{28}"
)


def environment_facts(
    deep: bool = True,
    *,
    environ: Mapping[str, str] = os.environ,
    nvml: Any = None,
    root: Path = _ROOT,
    torch_facts: Callable[[], dict[str, Any]] = ask_torch,
) -> dict[str, Any]:
    """What this machine and installation are, as JSON-ready values; what cannot be learned is None or an "error".

    `deep` adds what takes seconds: "torch" (asked in a child process with a time limit), "addresses" (what the host's
    name resolves to) and `gpu_facts`. The rest stands in for the machine in tests.
    """
    reading = read_machine(nvml)
    facts: dict[str, Any] = {
        "drumline": __version__,
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "os": {
            "system": _distribution(),
            "kernel": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(),
            "container": container(root, environ),
        },
        "packages": {name: _version(name) for name in PACKAGES},
        "host": {
            "hostname": socket.gethostname(),
            "cpu_cores": cpu_cores(root),
            "cpu_cores_of_machine": os.cpu_count(),
            "memory_bytes": memory_bytes(root),
            "memory_bytes_of_machine": int(psutil.virtual_memory().total),
        },
        "limits": {
            "open_files": asdict(open_files()),
            "shared_memory": _space(root / "dev/shm"),
            "working_directory": _space(Path.cwd()),
        },
        **_gpu_facts(reading, environ),
        **_network_facts(environ),
        "variables": allowed(environ, VARIABLES),
        "slurm": allowed(environ, SLURM_VARIABLES),
    }
    if deep:
        facts["addresses"] = resolve(socket.gethostname())
        facts["torch"] = torch_facts()
        facts |= gpu_facts(nvml)
    return facts


def allowed(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Pure: the variables of these names that are set; a value that looks like a secret is not shown."""
    found = {name: environ[name] for name in names if name in environ}
    return {name: "(looks like a secret)" if _SECRET.search(value) else value for name, value in found.items()}


def resolve(hostname: str) -> list[str]:
    """The addresses that a host's name stands for; empty where it stands for none. May wait for a name server."""
    try:
        answers = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(answer[4][0]) for answer in answers})


def _gpu_facts(reading: Reading, environ: Mapping[str, str]) -> dict[str, Any]:
    visible, source = visible_gpus(reading, environ)
    places = {gpu.uuid: place for place, gpu in enumerate(visible)}
    gpus = []
    for device in reading.devices:
        for gpu in (device.gpu, *(instance.gpu for instance in device.instances or ())):
            peak = find_peak(gpu.name)
            gpus.append(
                {
                    **asdict(gpu),
                    "cuda_index": places.get(gpu.uuid),  # None: hidden from this process
                    "peak_source": peak.source if peak else None,
                }
            )
    return {
        "gpus": gpus,
        "gpu_source": source,
        "gpu_problems": list(reading.problems),
        "gpu_fault": asdict(reading.fault) if reading.fault else None,
        "driver": reading.driver,
    }


def _network_facts(environ: Mapping[str, str]) -> dict[str, Any]:
    interfaces = list_interfaces()
    name, reason = nccl_interface(interfaces, environ.get("NCCL_SOCKET_IFNAME"))
    return {
        "network": {
            "interfaces": [asdict(interface) for interface in interfaces],
            "nccl_interface": name,
            "nccl_interface_reason": reason,
        }
    }


def _space(path: Path) -> dict[str, int] | None:
    found = space(path)
    return asdict(found) if found else None


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
