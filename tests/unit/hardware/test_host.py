from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from drumline.hardware.host import (
    container,
    cpu_cores,
    memory_bytes,
    num_open_files,
    nvidia_devices,
    open_files,
    read_host,
    space,
)

GIB = 1 << 30
V2 = "30 23 0:26 {mounted} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 23 0:27 {mounted} /sys/fs/cgroup/{name} rw,nosuid - cgroup cgroup rw,{controllers}\n"


def tree(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    """A root folder with proc/ and sys/ as a kernel would show them."""
    written = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo}
    written |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, group: str, files: dict[str, str], mounted: str = "/") -> Path:
    return tree(root, f"0::{group}\n", V2.format(mounted=mounted), files)


def v1(root: Path, group: str, files: dict[str, str], mounted: str = "/") -> Path:
    mounts = V1.format(mounted=mounted, name="cpu,cpuacct", controllers="cpu,cpuacct")
    mounts += V1.format(mounted=mounted, name="memory", controllers="memory")
    return tree(root, f"4:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:{group}\n0::/\n", mounts, files)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("200000 50000", 4),
        ("nonsense", 8),
        ("", 8),
    ],
)
def test_v2_quota_is_rounded_down_and_at_least_one(tmp_path: Path, quota: str, cores: int) -> None:
    assert cpu_cores(v2(tmp_path, "/", {"cpu.max": quota + "\n"}), affinity=8) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3), ("150000", 1), ("20000", 1)])
def test_v1_quota(tmp_path: Path, quota: str, cores: int) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": quota + "\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert cpu_cores(v1(tmp_path, "/", files), affinity=8) == cores


def test_v1_quota_without_a_period_is_no_limit(tmp_path: Path) -> None:
    assert cpu_cores(v1(tmp_path, "/", {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n"}), affinity=8) == 8


def test_limits_of_outer_groups_bind_too(tmp_path: Path) -> None:
    files = {
        "slurm/memory.max": f"{16 * GIB}\n",
        "slurm/cpu.max": "300000 100000\n",
        "slurm/job/memory.max": f"{64 * GIB}\n",
        "slurm/job/step/memory.max": "max\n",
        "slurm/job/step/cpu.max": "600000 100000\n",
        "other/memory.max": f"{GIB}\n",
    }
    root = v2(tmp_path, "/slurm/job/step", files)
    assert memory_bytes(root, total=128 * GIB) == 16 * GIB
    assert cpu_cores(root, affinity=64) == 3


def test_v1_memory_limit_and_its_huge_number_for_none(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/user/memory.limit_in_bytes": f"{4 * GIB}\n",
    }
    root = v1(tmp_path, "/user/deep", files)
    assert memory_bytes(root, total=32 * GIB) == 4 * GIB
    (tmp_path / "sys/fs/cgroup/memory/user/memory.limit_in_bytes").unlink()
    assert memory_bytes(root, total=32 * GIB) == 32 * GIB


def test_a_limit_above_the_machines_memory_is_none(tmp_path: Path) -> None:
    assert memory_bytes(v2(tmp_path, "/", {"memory.max": f"{512 * GIB}\n"}), total=32 * GIB) == 32 * GIB


def test_a_container_that_sees_only_its_own_branch(tmp_path: Path) -> None:
    """Without a group namespace the process's path is the host's, and the mount's root is that path."""
    root = v1(tmp_path, "/docker/ab12", {"memory/memory.limit_in_bytes": f"{2 * GIB}\n"}, mounted="/docker/ab12")
    assert memory_bytes(root, total=32 * GIB) == 2 * GIB
    inner = v2(tmp_path / "v2", "/docker/ab12/in", {"in/memory.max": f"{3 * GIB}\n"}, mounted="/docker/ab12")
    assert memory_bytes(inner, total=32 * GIB) == 3 * GIB


def test_a_group_outside_of_the_namespace_falls_back_to_the_mounts_root(tmp_path: Path) -> None:
    root = v2(tmp_path, "/../../elsewhere", {"memory.max": f"{5 * GIB}\n"})
    assert memory_bytes(root, total=32 * GIB) == 5 * GIB


def test_both_versions_at_once(tmp_path: Path) -> None:
    root = v1(tmp_path, "/", {"memory/memory.limit_in_bytes": f"{6 * GIB}\n", "unified/memory.max": f"{2 * GIB}\n"})
    mountinfo = root / "proc/self/mountinfo"
    unified = V2.format(mounted="/").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    mountinfo.write_text(mountinfo.read_text() + unified)
    assert memory_bytes(root, total=32 * GIB) == 2 * GIB


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, total=7) == 7
    assert cpu_cores(tmp_path, affinity=5) == 5


def test_this_host() -> None:
    host = read_host()
    assert 1 <= host.cpu_cores <= (os.cpu_count() or 1)
    assert 0 < host.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.hostname


def test_space_of_a_folder_and_of_none(tmp_path: Path) -> None:
    found = space(tmp_path)
    assert found is not None
    assert 0 <= found.free_bytes <= found.size_bytes
    assert space(tmp_path / "absent") is None


def test_open_files_tells_the_limit_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_files().soft == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    assert (open_files().soft, open_files().hard) == (256, None)


def test_files_that_are_open_are_counted(tmp_path: Path) -> None:
    before = num_open_files()
    with (tmp_path / "file").open("w"):
        assert num_open_files() == before + 1
    assert num_open_files() == before > 0
    assert num_open_files(tmp_path) == 0


def test_containers_by_their_marks(tmp_path: Path) -> None:
    assert container(tmp_path, {}) is None
    (tmp_path / ".dockerenv").touch()
    assert container(tmp_path, {}) == "docker"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").touch()
    assert container(tmp_path, {}) == "podman"
    assert container(tmp_path, {"APPTAINER_CONTAINER": "/x.sif"}) == "apptainer"
    assert container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "kubernetes"


@pytest.mark.parametrize(
    ("files", "there"),
    [
        (["dev/nvidia0"], True),
        (["dev/nvidia12", "dev/nvidiactl"], True),
        (["dev/nvhost-gpu"], True),
        (["dev/nvidiactl", "dev/nvidia-uvm"], False),
        (["dev/dxg"], False),
        (["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"], True),
        ([], False),
    ],
)
def test_device_files_of_gpus(tmp_path: Path, files: list[str], there: bool) -> None:
    tree(tmp_path, "", "", {})
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert nvidia_devices(tmp_path) is there
