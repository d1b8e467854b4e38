from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from drumline.hardware.nvml import Unavailable
from drumline.hardware.processes import LAUNCH_MARK, describe, processes_of
from drumline.hardware.records import GpuProcess
from drumline.launcher.spec import MARK
from tests.simulated_nvml import NO_PERMISSION, NOT_SUPPORTED, SimulatedGpu, SimulatedNvml, SimulatedProcess

FIRST_NAMESPACE, CONTAINER = "pid:[4026531836]", "pid:[4026532281]"
ME, USER = os.getpid(), os.geteuid()
STRANGER = USER + 4321
"""A number that no user of this machine has."""


class Proc:
    """A /proc made of files, below a folder that stands for /."""

    def __init__(self, root: Path, namespace: str = FIRST_NAMESPACE) -> None:
        self.root = root
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/pid").symlink_to(namespace)

    def add(
        self,
        pid: int,
        *words: str,
        user: int = STRANGER,
        parent: int = 1,
        environ: str = "",
        files: tuple[str, ...] = (),
    ) -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (folder / "comm").write_text("kworker) R 7\n")
        (folder / "status").write_text(f"Name:\tx\nUid:\t0\t{user}\t0\t0\n")
        (folder / "environ").write_text(environ)
        (folder / "stat").write_text(f"{pid} (a) S 7) S {parent} " + "0 " * 17 + "555 0\n")
        for place, name in enumerate(files):
            (folder / "fd" / str(place)).symlink_to(name)

    def seen(self, pid: int, told: str | None = None) -> tuple[str | None, str | None, bool]:
        found = describe(pid, "compute", 5, told=told, root=self.root)
        assert (found.pid, found.kind, found.memory_bytes) == (pid, "compute", 5)
        return found.name, found.user, found.ours


def test_the_mark_is_the_launchers() -> None:
    assert LAUNCH_MARK == MARK


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("/usr/bin/python3.11", "-u", "/home/a/train.py", "--token", "secret"), "python3.11 train.py"),
        (("python", "-W", "error", "-X", "dev", "-m", "drumline.worker", "run"), "python -m drumline.worker"),
        (("python", "-c", "import secret"), "python -c"),
        (("python",), "python"),
        (("/opt/fit/bin/fit", "--token", "secret"), "fit"),
        (("x" * 100,), "x" * 80),
        (("\x1b]0;mine\x07fit\u202e",), "?]0;mine?fit?"),  # steers the terminal that shows it
        ((), "kworker) R 7"),
    ],
)
def test_names_say_what_runs_and_no_arguments(tmp_path: Path, words: tuple[str, ...], name: str) -> None:
    proc = Proc(tmp_path)
    proc.add(70, *words)
    assert proc.seen(70) == (name, str(STRANGER), False)


def test_owner_by_name(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(70, "fit", user=USER)
    assert proc.seen(70) == ("fit", pwd.getpwuid(USER).pw_name, False)


def test_a_process_that_is_not_here_keeps_what_the_driver_told(tmp_path: Path) -> None:
    assert Proc(tmp_path).seen(70, "/opt/fit") == ("/opt/fit", None, False)


def test_this_process_and_its_descendants_are_ours(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(ME, "python", parent=2)
    proc.add(5_000_001, "python", parent=ME)
    proc.add(5_000_002, "python", parent=5_000_001)
    proc.add(5_000_003, "python", parent=5_000_004)
    proc.add(5_000_004, "python", parent=5_000_003)  # reused numbers may make a circle of what one reads
    assert [proc.seen(pid)[2] for pid in (ME, 5_000_001, 5_000_002, 5_000_003)] == [True, True, True, False]


def test_a_launch_of_ours_by_this_user_is_ours_and_anothers_is_not(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    mark = f"PATH=/bin\0{MARK}=abc\0"
    proc.add(71, "python", user=USER, environ=mark)
    proc.add(72, "python", user=STRANGER, environ=mark)
    proc.add(73, "python", user=USER, environ=f"X={MARK}=abc\0")
    assert [proc.seen(pid)[2] for pid in (71, 72, 73)] == [True, False, False]


def test_in_a_container_a_number_alone_names_nobody(tmp_path: Path) -> None:
    proc = Proc(tmp_path, CONTAINER)
    proc.add(71, "python", "train.py", files=("/dev/null", "/dev/nvidia0"))
    proc.add(72, "bash", files=("/dev/null", "/home/nvidia"))
    assert proc.seen(71)[0] == "python train.py"
    assert proc.seen(72, "told") == ("told", None, False)


def test_a_number_that_comes_again_is_looked_up_again(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(71, "first")
    assert proc.seen(71)[0] == "first"
    (tmp_path / "proc/71/cmdline").write_text("second\0")
    assert proc.seen(71)[0] == "first"  # the same process
    stat = tmp_path / "proc/71/stat"
    stat.write_text(stat.read_text().replace("555", "556"))
    assert proc.seen(71)[0] == "second"


def asked(gpu: SimulatedGpu, root: Path) -> tuple[GpuProcess, ...] | Unavailable:
    nvml = SimulatedNvml([gpu])
    nvml.nvmlInit()
    return processes_of(nvml, nvml.nvmlDeviceGetHandleByIndex(0), root)


def test_both_kinds_of_one_process_are_one_row(tmp_path: Path) -> None:
    Proc(tmp_path)
    processes = [
        SimulatedProcess(90, 100),
        SimulatedProcess(80, None),
        SimulatedProcess(90, 300, graphics=True),
        SimulatedProcess(60, 7, graphics=True),
    ]
    assert asked(SimulatedGpu("GPU-a", processes=processes), tmp_path) == (
        GpuProcess(60, "graphics", 7),
        GpuProcess(80, "compute", None),
        GpuProcess(90, "compute+graphics", 300),
    )


def test_one_kind_refused_is_not_the_end(tmp_path: Path) -> None:
    Proc(tmp_path)
    errors = {"nvmlDeviceGetGraphicsRunningProcesses": NOT_SUPPORTED}
    gpu = SimulatedGpu("GPU-a", processes=[SimulatedProcess(90)], errors=errors)
    assert [entry.pid for entry in asked(gpu, tmp_path) if isinstance(entry, GpuProcess)] == [90]  # type: ignore[union-attr]
    gpu.errors["nvmlDeviceGetComputeRunningProcesses"] = NO_PERMISSION
    assert asked(gpu, tmp_path) == Unavailable("no permission", NO_PERMISSION)
