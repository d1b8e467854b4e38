"""XIDs, the error numbers of NVIDIA's driver: whose fault each is, and what NVIDIA's catalogue says to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]

SOURCE = "NVIDIA XID catalogue"
"""docs.nvidia.com/deploy/xid-errors, 'Analyzing Xid Errors with the Xid Catalog' (Ampere and newer)."""


@dataclass(frozen=True)
class Xid:
    """One XID as it was reported."""

    uuid: str | None
    """GPU that it is about; None where only its address is known."""
    pci_address: str | None
    """domain:bus:device.function, as in Gpu.pci_address; None where only the UUID is known."""
    code: int
    time: float
    """Seconds since 1970."""
    text: str
    """What the driver wrote behind the number, or the catalogue's title of it."""
    origin: Literal["event", "kernel log"]


@dataclass(frozen=True)
class XidMeaning:
    """What an XID says of the GPU."""

    title: str
    status: Status
    """ok: the program's doing, or news without consequence. warn: the GPU works on and is to be watched. fail: it needs
    a reset, a restart of the machine, or service."""
    action: str
    source: str = SOURCE


_Do = tuple[Status, str]
# What the catalogue's resolution buckets come to (immediate action, then what to do if it comes again).
_PROGRAM: _Do = ("ok", "look for the cause in the program, for example with compute-sanitizer; the GPU is sound")
_NOTHING: _Do = ("ok", "nothing to do")
_AGAIN: _Do = ("warn", "start the run again; if it comes back, tell the vendor's support")
_WATCH: _Do = ("warn", "nothing now; if it comes back, tell the vendor's support")
_LATER: _Do = ("warn", "reset the GPU when that is convenient (nvidia-smi --gpu-reset); it may be used until then")
_RESET: _Do = ("fail", "reset the GPU (nvidia-smi --gpu-reset); if it comes back, tell the vendor's support")
_REBOOT: _Do = ("fail", "restart the machine, power off and on; if it comes back, tell the vendor's support")
_CABLES: _Do = ("fail", "check that the GPU sits firmly and that its power cables are connected")
_UPDATE: _Do = ("warn", "bring driver and firmware up to date")
_LINK: _Do = ("fail", "reset the GPU; if it comes back, see nvidia-smi nvlink -e and have the links checked")
_LINK5: _Do = ("warn", "decode it by the catalogue's table for XIDs 144 to 150; XID 154 tells what the driver wants")
# Its finding is recovery_action, or another XID's: without the text of the log it says nothing by itself.
_FOLLOW: _Do = ("ok", "do what the message says; the driver sums up with it what other XIDs ask for")

# Numbers that the catalogue calls unused are absent, and so unknown here: only GPUs before Ampere sent them.
_TABLE: dict[tuple[int, ...], tuple[str, _Do]] = {
    (8,): ("GPU stopped processing", _AGAIN),
    (11, 25): ("invalid or corrupted push buffer stream", _PROGRAM),
    (13,): ("exception of the graphics engine: mostly an access past the end of an array", _PROGRAM),
    (14,): ("injected error", _NOTHING),
    (31,): ("memory page fault: the program read or wrote an illegal address", _PROGRAM),
    # Its bucket says application, its text says that the PCIe link is the usual cause.
    (32,): ("corrupted push buffer stream, mostly for the quality of the PCIe link", _AGAIN),
    (37,): ("firmware error of the driver", _PROGRAM),
    (38, 44, 67): ("error of driver or firmware", _WATCH),
    (66,): ("illegal access by the driver", _PROGRAM),
    (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)): ("exception of a copy engine", _AGAIN),
    (43,): ("GPU stopped processing: the program made an error and had to end", _PROGRAM),
    (45,): ("cleaned up after a program that was ended or met another error", _NOTHING),
    (46,): ("GPU stopped processing and has timed out", _RESET),
    (48,): ("uncorrectable (double-bit) ECC error", _RESET),
    (54,): ("auxiliary power is not connected", _CABLES),
    (60,): ("exception of a video processor", _PROGRAM),
    (62, 169): ("internal micro-controller halted", _RESET),
    (63,): ("a row or page of memory is marked for replacement", _LATER),
    (64,): ("a row or page of memory could not be replaced", _RESET),
    (68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142): ("exception of a video or image engine", _AGAIN),
    (69,): ("class error of the graphics engine", _PROGRAM),
    (74,): ("NVLink error", _LINK),
    (78,): ("virtual GPU cannot start", _UPDATE),
    (79,): ("GPU has fallen off the bus", _REBOOT),
    (80,): ("corrupted data sent to the GPU", _PROGRAM),
    (92,): ("high rate of corrected ECC errors", _WATCH),
    (93,): ("infoROM may not be written any more: its wear limit is reached", _WATCH),
    (94,): ("uncorrectable memory error, contained to one program", _LATER),
    (95,): ("uncontained memory error: several programs are affected", _RESET),
    (106, 107): ("test message", _NOTHING),
    (108, 137): ("illegal access over NVLink", _PROGRAM),
    (109,): ("context switch timed out", _RESET),
    (110,): ("security fault", _REBOOT),
    (119, 120): ("the GPU's system processor (GSP) does not answer or failed", _RESET),
    (121,): ("corrected errors on the link between GPU and CPU", _LATER),
    (136,): ("NVLink training failed", _LINK),
    (140,): ("uncorrectable ECC error that the driver could not handle", _RESET),
    (141,): ("error of CUDA's fast path", _WATCH),
    (143,): ("GPU could not be initialised", _RESET),
    (*range(144, 149),): ("NVLink error", _LINK5),
    (149, 150): ("NVLink error", _LINK),
    (151,): ("key rotation failed", ("fail", "restart the virtual machine")),
    (152, 153): ("error of a deep-learning accelerator", _WATCH),
    (154,): ("the driver's recovery action changed", _FOLLOW),
    (155,): ("NVLink was taken down by software", _LINK),
    (156,): ("a resource of the GPU is marked for retirement", _RESET),
    (157,): ("a resource of the GPU could not be retired: none is left to take its place", _WATCH),
    (158,): ("fatal timeout of the GPU", _RESET),
    (159,): ("error on the link between GPU and CPU", _WATCH),
    (160, 161): ("a channel was retired", _WATCH),
    (162,): ("power smoothing is on again", _NOTHING),
    (163, 164, 165): ("power smoothing is off or near its end of life", _WATCH),
    (166, 170): ("NVLink error in confidential computing", _WATCH),
    (167,): ("fatal timeout of PCIe", _REBOOT),
    (168,): ("errors in the protected region of memory", ("warn", "switch ECC on (nvidia-smi -e 1) and reset the GPU")),
    (171, 172): ("uncorrectable ECC error, in more detail", _RESET),
}
_ROWS = {code: row for codes, row in _TABLE.items() for code in codes}

RECOVERY_TOLD = frozenset(
    (48, 62, 63, 64, 74, 79, 94, 95, 109, 110, 120, 136, 143, *range(144, 151), 155, 156, 158, 159)
)
"""XIDs of which the driver keeps in mind what they need (the catalogue's column 'Xid 154 linkage', drivers from R565):
where it says that nothing is needed, they are dealt with."""


def meaning(code: int, text: str = "") -> XidMeaning:
    """What this XID says of its GPU; `text`, where the driver's line is known, decides on those that leave it open.

    A number that the catalogue does not know is a warning that says so.
    """
    row = _ROWS.get(code)
    if row is None:
        return XidMeaning("not in NVIDIA's catalogue", "warn", "look it up in the driver's release notes")
    title, (status, action) = row
    return XidMeaning(title, _by_text(code, text) or status, action)


def _by_text(code: int, text: str) -> Status | None:
    if 144 <= code <= 150 and text:
        # "149, NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x...": the second word is Fatal or Nonfatal.
        words = text.lower().split()
        return "fail" if "fatal" in words else "warn" if "nonfatal" in words or "non-fatal" in words else None
    if code == 154 and "to 0x" in text:
        # "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        now = text.rpartition("to 0x")[2].lower()
        return "ok" if "none" in now else "fail" if "required" in now else "warn"
    return None
