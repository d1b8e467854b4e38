"""CPU, memory, shared memory and file handles of the host, with what container limits leave of them."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from drumline.hardware.records import Host

_ROOT = Path("/")


@dataclass(frozen=True)
class Space:
    """Size of a file system and what an unprivileged writer may still take of it."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class OpenFiles:
    """RLIMIT_NOFILE: how many files this process may hold open; None for no limit."""

    soft: int | None
    hard: int | None


def read_host(root: Path = _ROOT) -> Host:
    """CPU cores, memory and name of this host as this process may use them. `root` holds proc/ and sys/ in tests."""
    return Host(cpu_cores(root), memory_bytes(root), socket.gethostname())


def cpu_cores(root: Path = _ROOT, affinity: int | None = None) -> int:
    """Cores that this process may use: its affinity mask, cut by the CFS quota, rounded down, at least 1."""
    if affinity is None:
        # Not on every system; there the count of all cores is all there is to know.
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = list(_quotas(root))
    return max(1, int(min([affinity, *quotas])))


def memory_bytes(root: Path = _ROOT, total: int | None = None) -> int:
    """Memory that this process may use: the machine's, or the least limit of the control groups it is in."""
    if total is None:
        total = int(psutil.virtual_memory().total)
    limits = [_number(file / name) for file, name in _levels(root, "memory", "memory.max", "memory.limit_in_bytes")]
    return min([total, *(limit for limit in limits if limit is not None)])


def space(path: Path) -> Space | None:
    """Size and free space of the file system under `path`; None where there is no such path."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return Space(stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail)


def open_files() -> OpenFiles:
    """How many files this process may hold open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (None if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return OpenFiles(soft, hard)


def num_open_files(root: Path = _ROOT) -> int:
    """How many files this process holds open now; 0 where the system does not tell."""
    try:
        return len(os.listdir(root / "proc/self/fd"))  # noqa: PTH208 - one call, no objects
    except OSError:
        return 0


def container(root: Path = _ROOT, environ: Mapping[str, str] = os.environ) -> str | None:
    """What kind of container this process runs in, by the marks that container engines leave; None for none seen."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environ or "SINGULARITY_CONTAINER" in environ:
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return None


def nvidia_devices(root: Path = _ROOT) -> bool:
    """Whether the kernel, or a container engine, shows this process an NVIDIA GPU: no driver library is needed for it.

    /dev/nvidia0 and so on; /dev/nvhost-gpu on boards whose GPU is a part of the chip. Windows' Linux has one device
    file for GPUs of any maker, and NVIDIA's driver beside it.
    """
    if any(next((root / "dev").glob(name), None) is not None for name in ("nvidia[0-9]*", "nvhost-gpu")):
        return True
    return (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()


def _quotas(root: Path) -> Iterator[float]:
    """CPU quotas, in cores, of each control group above this process."""
    for folder, name in _levels(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        if name == "cpu.max":
            quota, _, period = (_read(folder / name) or "").partition(" ")
        else:
            quota, period = _read(folder / name) or "", _read(folder / "cpu.cfs_period_us") or ""
        # "max" (v2) and -1 (v1) mean no quota.
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            yield int(quota) / int(period)


def _levels(root: Path, controller: str, v2: str, v1: str) -> Iterator[tuple[Path, str]]:
    """The control groups this process is in for a controller, innermost first, with the name of their limit's file.

    Limits of outer groups bind too, so the walk goes up to where the hierarchy is mounted (cgroups(7)).
    """
    for mount, group, name in _memberships(root, controller, v2, v1):
        folder = mount / group
        while True:
            if (folder / name).is_file():
                yield folder, name
            if folder == mount:
                break
            folder = folder.parent


def _memberships(root: Path, controller: str, v2: str, v1: str) -> Iterator[tuple[Path, str, str]]:
    """(mount point, this process's group below it, file name) of each hierarchy that may hold the controller."""
    paths: dict[str, str] = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))  # v2's list is empty: its key is ""
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        key = {"cgroup2": "", "cgroup": controller}.get(kind)
        if key is None or key not in paths or (key and key not in options.split(" ")[-1].split(",")):
            continue
        mounted, point = before.split(" ")[3:5]
        # In a container the mount may show only the container's own branch of the hierarchy.
        group = paths[key].removeprefix(mounted if mounted != "/" else "").strip("/")
        yield root / point.strip("/"), "" if ".." in group else group, v1 if key else v2


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.isdecimal() else None


def _read(path: Path) -> str | None:
    """The stripped text of a kernel file; None where it is absent or not for us to read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
