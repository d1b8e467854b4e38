"""Who computes on a GPU: owner, name, and whether it is ours, as far as this process may see."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from drumline.hardware.nvml import GONE, Unavailable, ask
from drumline.hardware.records import GpuProcess

LAUNCH_MARK = "DRUMLINE_LAUNCH"
"""Variable in the environment of every process of a launch of ours (launcher.spec.MARK)."""

_ROOT = Path("/")
# The inode of the first pid namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO): outside of containers.
_FIRST_NAMESPACE = "pid:[4026531836]"
_LONGEST_NAME = 80


def processes_of(nvml: Any, handle: Any, root: Path = _ROOT) -> tuple[GpuProcess, ...] | Unavailable:
    """The processes on one GPU or MIG instance, by pid; why the driver does not tell, where it tells of no kind.

    A driver that knows pid namespaces leaves out what a container may not see; an older one tells the host's numbers.
    """
    found: dict[int, tuple[set[str], int | None]] = {}
    refusals: list[Unavailable] = []
    for kind in ("compute", "graphics"):
        answer = ask(nvml, f"nvmlDeviceGet{kind.capitalize()}RunningProcesses", handle)
        if isinstance(answer, Unavailable):
            if answer.code in GONE:  # lost just now: what it told before is half of it
                return answer
            refusals.append(answer)
            continue
        for entry in answer:
            kinds, memory = found.setdefault(int(entry.pid), (set(), None))
            kinds.add(kind)
            used = entry.usedGpuMemory
            found[int(entry.pid)] = (kinds, memory if used is None else max(int(used), memory or 0))
    if len(refusals) == 2:
        return refusals[0]
    named = {frozenset({"compute"}): "compute", frozenset({"graphics"}): "graphics"}
    return tuple(
        describe(pid, named.get(frozenset(kinds), "compute+graphics"), memory, root=root)
        for pid, (kinds, memory) in sorted(found.items())
    )


def describe(
    pid: int, kind: str, memory_bytes: int | None, *, told: str | None = None, root: Path = _ROOT
) -> GpuProcess:
    """One process on a GPU, with owner and name where /proc has it. `told`: the name that the driver gave."""
    began = _stat(pid, root)[1]
    if began is None or not _is_the_drivers(root / "proc" / str(pid), root):
        return GpuProcess(pid, kind, memory_bytes, _printable(told))
    name, user, ours = _facts(pid, began, os.getpid(), root)
    return GpuProcess(pid, kind, memory_bytes, _printable(name or told), user, ours)


@lru_cache(maxsize=1024)
def _facts(pid: int, began: str, viewer: int, root: Path) -> tuple[str | None, str | None, bool]:
    """Name, owner, and whether it is ours: looked up once a process, which number and start name together.

    Whoever samples each second need not read half of /proc for it.
    """
    folder = root / "proc" / str(pid)
    uid = _uid(folder)
    return _name(folder), None if uid is None else _user(uid), _is_ours(pid, folder, root)


def _is_the_drivers(folder: Path, root: Path) -> bool:
    """Whether the process with this number here is the one that the driver means.

    In a container the number may be the host's and by chance also one of a process here, which then holds no device
    file of the driver. One whose files are not for us to see is not trusted either.
    """
    try:
        if str((root / "proc/self/ns/pid").readlink()) == _FIRST_NAMESPACE:
            return True
        files = [str(entry.readlink()) for entry in (folder / "fd").iterdir()]
    except OSError:
        return False
    return any(name.startswith(("/dev/nvidia", "/dev/dxg", "/dev/nvhost")) for name in files)


def _name(folder: Path) -> str | None:
    """Program and script or module, as people know them: 'python train.py', 'python -m drumline.worker'."""
    words = (_read(folder / "cmdline") or "").rstrip("\0").split("\0")
    if not words[0]:
        return _read(folder / "comm")
    name = Path(words[0]).name
    if name.startswith("python"):
        name = " ".join([name, *_script(words[1:])])
    return name[:_LONGEST_NAME]


def _printable(name: str | None) -> str | None:
    """Another user chose these characters: none of them may steer the terminal that shows them."""
    return None if name is None else "".join(each if each.isprintable() else "?" for each in name)


def _script(words: list[str]) -> Iterator[str]:
    """The words of a Python command line that say what it runs; never its arguments, which may hold secrets."""
    rest = iter(words)
    for word in rest:
        if word == "-m":
            yield from (word, next(rest, ""))
            return
        if word == "-c":
            yield word
            return
        if word in ("-W", "-X"):
            next(rest, None)
        elif not word.startswith("-"):
            yield Path(word).name
            return


@lru_cache(maxsize=256)
def _user(uid: int) -> str:
    """Name of a user, asked once: a directory service may be slow. The number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _uid(folder: Path) -> int | None:
    """The effective user, from the second number of status' line Uid (proc(5))."""
    for line in (_read(folder / "status") or "").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[2])
    return None


def _is_ours(pid: int, folder: Path, root: Path) -> bool:
    """Whether it is this process, a descendant of it, or one of a launch of ours by the same user."""
    if os.getpid() in _ancestors(pid, root):
        return True
    if _uid(folder) != os.geteuid():
        return False
    environment = _read(folder / "environ") or ""
    return any(entry.startswith(f"{LAUNCH_MARK}=") for entry in environment.split("\0"))


def _ancestors(pid: int, root: Path) -> Iterator[int]:
    """A process and those above it, as far as /proc shows them."""
    seen: set[int] = set()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        yield pid
        pid = _stat(pid, root)[0] or 0


def _stat(pid: int, root: Path) -> tuple[int | None, str | None]:
    """Parent and start of a process, the 4th and 22nd field of its stat (proc(5)); (None, None) where it is not here.

    They are counted from behind the name in brackets, which may hold anything.
    """
    after = (_read(root / "proc" / str(pid) / "stat") or "").rpartition(")")[2].split()
    return (int(after[1]), after[19]) if len(after) > 19 else (None, None)


def _read(path: Path) -> str | None:
    """Text of a file below /proc; None where it is gone or not for us to read."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\n")
    except OSError:
        return None
