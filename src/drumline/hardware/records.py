"""What a machine has, as frozen records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU (or MIG instance), named by UUID; indexes differ between CUDA and NVML and are only for people."""

    uuid: str
    name: str
    index: int
    """NVML's index (PCI order), as nvidia-smi shows it; a MIG instance has its GPU's."""
    memory_bytes: int | None
    """Its whole memory; None where NVML does not say (GPUs that share the host's memory)."""
    compute_capability: tuple[int, int] | None
    """None where NVML does not say."""


@dataclass(frozen=True)
class Host:
    """CPU and memory that this process may use, container limits applied."""

    cpu_cores: int
    memory_bytes: int
    hostname: str


@dataclass(frozen=True)
class Hardware:
    """The machine as a run may use it."""

    gpus: tuple[Gpu, ...]
    """Visible GPUs (CUDA_VISIBLE_DEVICES applied), in CUDA's order."""
    host: Host
    gpu_source: str
    """Where `gpus` came from and what was left out, or why it is empty: 'nvml 580.159', 'no NVIDIA driver', ..."""
