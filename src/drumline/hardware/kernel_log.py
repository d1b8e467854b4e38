"""XIDs in the kernel's log, where this user may read it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from drumline.hardware.children import NotEnded, finish
from drumline.hardware.xids import Xid

_KMSG = Path("/dev/kmsg")
_LARGEST_RECORD = 16 << 10
_LIMIT_S = 5.0
"""How long journalctl or dmesg may take."""
_PROGRAMS = (
    # The last lines of this boot: a kernel always has some, so that no line at all means that none was shown to us.
    ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-unix", "--lines=20000"),
    ("dmesg",),
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)(?:\.\d)?[^)]*\): (\d+)(?:, *(.*))?")
_GPU = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]+:[0-9a-fA-F]+)(?:\.\d)?: (GPU-[0-9a-fA-F-]+)")
_DRIVER_LOADED = "NVRM: loading NVIDIA"

Log = Callable[[float], tuple[list[Xid], str | None]]
"""Reads XIDs as `read_xids` does."""
Line = tuple[float, str]
"""Seconds since 1970, and the message."""


def read_xids(
    since: float, kmsg: Path = _KMSG, programs: Iterable[tuple[str, ...]] = _PROGRAMS
) -> tuple[list[Xid], str | None]:
    """XIDs from `since` (seconds since 1970) on, oldest first, and why the kernel's log cannot be read, or None.

    Waits for nothing but a program that takes its time, and for that some seconds. `kmsg` and `programs` stand in for
    the machine's in tests.
    """
    # The kernel counts seconds since boot, without those spent asleep.
    boot = time.time() - time.monotonic()
    reasons = []
    for name, read in _sources(kmsg, programs):
        found = read()
        if isinstance(found, str):
            reasons.append(f"{name}: {found}")
        elif lines := list(read_lines(found, boot)):
            return [xid for xid in parse(lines) if xid.time >= since], None
        else:
            reasons.append(f"{name}: shows nothing")
    return [], f"the kernel's log cannot be read ({'; '.join(reasons)})"


def log_of(nvml: Any) -> Log:
    """How to read the log of the machine that this NVML is of: what stands in for pynvml has no kernel."""
    return read_xids if nvml is None else lambda since: ([], None)


def read_lines(text: list[str], boot: float = 0.0) -> Iterator[Line]:
    """Pure: lines of /dev/kmsg, `dmesg` or `journalctl --output=short-unix` with their times; others are passed over.

    boot: when the kernel started, in seconds since 1970.
    """
    for line in text:
        if match := re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", line):  # level, number, microseconds since boot, flags
            yield boot + int(match[1]) / 1e6, match[2]
        elif match := re.match(r"\[ *(\d+\.\d+)\] (.*)", line):
            yield boot + float(match[1]), match[2]
        elif match := re.match(r"(\d+\.\d+) \S+ kernel: (.*)", line):
            yield float(match[1]), match[2]


def parse(lines: Iterable[Line]) -> list[Xid]:
    """Pure: the XIDs among these lines; those from before the driver was last loaded are over, and left out."""
    found: list[Xid] = []
    uuids: dict[str, str] = {}
    for when, text in lines:
        if _DRIVER_LOADED in text:
            found.clear()
        elif match := _GPU.search(text):
            uuids[_address(match[1])] = match[2]
        elif match := _XID.search(text):
            address = _address(match[1])
            found.append(Xid(uuids.get(address), address, int(match[2]), when, (match[3] or "").strip(), "kernel log"))
    return found


def _address(text: str) -> str:
    """As in Gpu.pci_address: the driver leaves out the function, which is 0 of every GPU."""
    return f"{text.lower()}.0"


def _sources(kmsg: Path, programs: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, Callable[[], list[str] | str]]]:
    """(name, how to get its lines, or why there are none), the cheapest first."""
    yield str(kmsg), partial(_read_kmsg, kmsg)
    for command in programs:
        yield command[0], partial(_ask, command)


def _read_kmsg(path: Path) -> list[str] | str:
    """All records of the ring buffer; never waits for more."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return error.strerror or str(error)
    records = []
    try:
        while record := _record(device):
            records.append(record)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(device)
    return b"".join(records).decode("utf-8", "replace").splitlines()


def _record(device: int) -> bytes:
    """The next record; empty at the end."""
    while True:
        try:
            return os.read(device, _LARGEST_RECORD)
        except BlockingIOError:
            return b""
        except BrokenPipeError:
            continue  # this record was overwritten while we read; the next read gives the oldest that is left


def _ask(command: tuple[str, ...]) -> list[str] | str:
    try:
        ended = finish(command, _LIMIT_S, {**os.environ, "LC_ALL": "C"})
    except OSError as error:
        return error.strerror or str(error)
    if isinstance(ended, NotEnded):
        return ended.why
    if ended.status != 0:
        return ended.last_words
    return ended.output.splitlines()
