"""What the driver tells of a GPU's health: error counters and states as they are, without a judgement."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from ctypes import byref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from drumline.hardware.field_values import Field, Fields
from drumline.hardware.nvml import GONE, Found, Unavailable

if TYPE_CHECKING:
    from drumline.hardware.session import Session

# nvml.h: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and its values, NVML_GPU_RECOVERY_ACTION_*.
_RECOVERY_ACTION = Field(230)
NO_RECOVERY = "none"
RECOVERY_ACTIONS = {
    0: NO_RECOVERY,
    1: "reset the GPU",
    2: "restart the machine",
    3: "end programs that copy between GPUs",
    4: "let its programs end, then reset the GPU",
    5: "recover the machine's NVLink domain",
    6: "reset the GPU's bus",
    7: "restart the machine",
}
# NVLink's error counters by field of HealthFacts: NVML_FI_DEV_NVLINK_* over all links (up to NVLink 3), or of one link
# each (NVLink 4 and 5).
_LINK_COUNTERS = {
    "nvlink_crc_errors": ((38, 45), (163,)),
    "nvlink_replays": ((52,), (161,)),
    "nvlink_recoveries": ((59,), (162, 215)),
}
_MAX_LINKS = 36


@dataclass(frozen=True)
class HealthFacts:
    """One GPU's errors at one moment; None where the driver does not say, with the reason in `refused`.

    Counters count since the driver was loaded or the GPU was reset, except where they say 'ever'.
    """

    uuid: str
    time: float
    """Seconds since 1970."""
    pci_address: str | None = None
    lost: str | None = None
    """Why the GPU does not answer any more: lost, or in need of a reset."""
    recovery_action: str | None = None
    """What the driver wants done, in words of RECOVERY_ACTIONS (drivers from R565)."""
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    ecc_corrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    """Whether errors of the on-chip memory are more than the vendor tolerates."""
    rows_pending: bool | None = None
    """Whether rows of memory wait for a reset to be replaced (Ampere and later)."""
    rows_failed: bool | None = None
    """Whether a row could not be replaced, ever."""
    rows_remapped: int | None = None
    """Rows replaced for uncorrectable errors, ever."""
    pages_retired: int | None = None
    """Pages of memory taken out of use, ever (before Ampere)."""
    pages_retired_uncorrected: int | None = None
    """Those of them that had an uncorrectable error."""
    pages_pending: bool | None = None
    pcie_replays: int | None = None
    nvlinks: int | None = None
    """NVLinks that the GPU has."""
    nvlinks_up: int | None = None
    nvlinks_up_of_peers: int | None = None
    """The most that any GPU of the same name on this machine has up; None: no other is like it."""
    nvlink_crc_errors: int | None = None
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


def read_health(session: Session) -> tuple[HealthFacts, ...]:
    """The facts of every whole GPU that is, or was, in this session; MIG instances share their GPU's."""
    found = [one for one in session.found() if one.gpu.parent is None]
    facts = [(one, _Reader(session, one).read()) for one in found]
    # A GPU with MIG on has no NVLinks up, and no like to compare it with.
    up: dict[str, list[int]] = {}
    for one, told in facts:
        if not one.mig:
            up.setdefault(one.gpu.name, []).append(told.nvlinks_up or 0)
    like = {name: max(counts) for name, counts in up.items() if len(counts) > 1}
    here = {told.uuid for _, told in facts}
    return (
        *(replace(told, nvlinks_up_of_peers=None if one.mig else like.get(one.gpu.name)) for one, told in facts),
        *(HealthFacts(uuid, time.time(), lost=why.reason) for uuid, why in session.lost.items() if uuid not in here),
    )


class _Memory:
    """What is kept of one GPU between two looks: which of its fields it refuses for good."""

    def __init__(self) -> None:
        self.fields = Fields()

    def drop(self, nvml: Any) -> None:
        """Nothing of it is NVML's."""


class _Reader:
    """Asks one GPU and keeps answers and refusals apart."""

    def __init__(self, session: Session, one: Found) -> None:
        self._session, self._one = session, one
        self._found: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._lost: str | None = None

    def read(self) -> HealthFacts:
        """All facts; of a GPU that is lost on the way those until then, and why."""
        # nvml.h: NVML_MEMORY_ERROR_TYPE_(UN)CORRECTED, NVML_VOLATILE_ECC and NVML_AGGREGATE_ECC.
        self._count("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", 1, 0)
        self._count("ecc_uncorrected_ever", "nvmlDeviceGetTotalEccErrors", 1, 1)
        self._count("ecc_corrected", "nvmlDeviceGetTotalEccErrors", 0, 0)
        self._count("pcie_replays", "nvmlDeviceGetPcieReplayCounter")
        self._read_sram()
        self._read_rows()
        self._read_pages()
        self._read_fields(self._read_links())
        return HealthFacts(
            uuid=self._one.gpu.uuid,
            time=time.time(),
            pci_address=self._one.gpu.pci_address,
            lost=self._lost,
            refused=self._refused,
            **self._found,
        )

    def _note(self, names: tuple[str, ...], answer: Any) -> Any:
        """The answer; a refusal is noted for the fields of these names, and the end of a GPU as such."""
        if isinstance(answer, Unavailable):
            self._refused.update(dict.fromkeys(names, answer.reason))
            if answer.code in GONE and self._lost is None:
                self._lost = answer.reason
                self._session.lose(self._one, answer)
        return answer

    def _ask(self, names: tuple[str, ...], function: str, *args: int) -> Any:
        gone = Unavailable(self._lost) if self._lost else None
        return self._note(names, gone or self._session.live(self._one, function, *args))

    def _fill(self, names: tuple[str, ...], function: str, structure: Any) -> Any:
        """As _ask, for a structure that NVML fills."""
        gone = Unavailable(self._lost) if self._lost else None
        return self._note(names, gone or self._session.ask(function, self._one.handle, byref(structure)))

    def _count(self, name: str, function: str, *args: int) -> None:
        answer = self._ask((name,), function, *args)
        if not isinstance(answer, Unavailable):
            self._found[name] = int(answer)

    def _read_sram(self) -> None:
        kind = getattr(self._session.nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
        if kind is None:  # an old binding
            return
        status = kind()
        answer = self._fill(("sram_threshold_exceeded",), "nvmlDeviceGetSramEccErrorStatus", status)
        if not isinstance(answer, Unavailable):
            self._found["sram_threshold_exceeded"] = bool(status.bThresholdExceeded)

    def _read_rows(self) -> None:
        names = ("rows_remapped", "rows_pending", "rows_failed")
        answer = self._ask(names, "nvmlDeviceGetRemappedRows")
        if not isinstance(answer, Unavailable):
            _, uncorrectable, pending, failed = answer
            self._found.update(rows_remapped=int(uncorrectable), rows_pending=bool(pending), rows_failed=bool(failed))

    def _read_pages(self) -> None:
        # nvml.h, nvmlPageRetirementCause_t: 0 several single-bit errors, 1 a double-bit error.
        single, double = (self._ask(("pages_retired",), "nvmlDeviceGetRetiredPages", cause) for cause in (0, 1))
        if not isinstance(single, Unavailable) and not isinstance(double, Unavailable):
            self._found.update(pages_retired=len(single) + len(double), pages_retired_uncorrected=len(double))
        pending = self._ask(("pages_pending",), "nvmlDeviceGetRetiredPagesPendingStatus")
        if not isinstance(pending, Unavailable):
            self._found["pages_pending"] = bool(pending)

    def _read_links(self) -> int:
        """How many NVLinks the GPU has; the driver refuses the first that it does not have."""
        up: list[bool] = []
        for link in range(_MAX_LINKS):
            answer = self._ask(() if up else ("nvlinks", "nvlinks_up"), "nvmlDeviceGetNvLinkState", link)
            if isinstance(answer, Unavailable):
                break
            up.append(bool(answer))
        if up:
            self._found.update(nvlinks=len(up), nvlinks_up=sum(up))
        return len(up)

    def _read_fields(self, links: int) -> None:
        """The recovery action and NVLink's counters; link by link only where there are no totals, for that is slow."""
        counters = _LINK_COUNTERS if links else {}
        totals = {name: [Field(number) for number in numbers] for name, (numbers, _) in counters.items()}
        told = self._fields([_RECOVERY_ACTION, *itertools.chain(*totals.values())])
        action = self._note(("recovery_action",), told[_RECOVERY_ACTION])
        if not isinstance(action, Unavailable):
            self._found["recovery_action"] = RECOVERY_ACTIONS.get(int(action), f"unknown ({int(action)})")
        by_link = {
            name: [Field(number, link) for number in counters[name][1] for link in range(links)]
            for name, fields in totals.items()
            if not _numbers(told, fields)
        }
        told |= self._fields([*itertools.chain(*by_link.values())])
        for name, fields in totals.items():
            numbers = _numbers(told, fields) or _numbers(told, by_link[name])
            if numbers:
                self._found[name] = sum(numbers)
            else:
                self._note((name,), told[fields[0]])

    def _fields(self, wanted: list[Field]) -> dict[Field, Any]:
        if self._lost:
            return dict.fromkeys(wanted, Unavailable(self._lost))
        return self._session.kept(self._one, _Memory).fields.read(self._session.nvml, self._one, wanted)


def _numbers(told: Mapping[Field, Any], fields: list[Field]) -> list[int]:
    return [int(told[each]) for each in fields if not isinstance(told[each], Unavailable)]
