"""Is this GPU fit to be used? Pure judgement of its error counters, state and XIDs; every threshold has its source."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drumline.hardware.health_facts import NO_RECOVERY, HealthFacts, read_health
from drumline.hardware.nvml import INIT_LIMIT_S, Unavailable
from drumline.hardware.xids import RECOVERY_TOLD, SOURCE, Status, Xid, meaning

if TYPE_CHECKING:
    from drumline.hardware.kernel_log import Log
    from drumline.hardware.records import GpuSample
    from drumline.hardware.session import Session

_MEMORY_GUIDE = "NVIDIA GPU Memory Error Management"
_PAGES_GUIDE = "NVIDIA Dynamic Page Retirement"
_DCGM = "NVIDIA DCGM, health watches"
_NVML = "NVML API reference"
_VENDOR = "tell the vendor's support"
_RESET = "reset the GPU (nvidia-smi --gpu-reset) or restart the machine"

MAX_PCIE_REPLAYS_PER_MINUTE = 8
"""DCGM, dcgm_gpu_hardware_limits: what the driver's makers recommend at most."""
MAX_NVLINK_CRC_PER_S = 100.0
"""DCGM, the same place: fewer checksum errors a second than this do no harm."""
MAX_RETIRED_PAGES = 63
"""DCGM, the same place, as NVIDIA's field diagnostic has it: from here on a GPU is to be replaced."""
MANY_RETIRED_PAGES = 15
"""DCGM, the same place: with more pages retired for uncorrectable errors than this, a GPU is to be watched."""
XID_AGE_S = 24 * 3600.0
"""How far back the kernel's log counts. Ours: long enough for a failure of last night, and a reset leaves no mark."""

_GRAVITY = {"ok": 0, "warn": 1, "fail": 2}
# By the word of GpuSample.throttled_by, the more exact ones first: (code, what happens, what to do). A power limit
# alone is how large GPUs run under full load, and no finding.
_THROTTLES = (
    ("power brake", "power_brake", "the power supply asks it to slow down", "check power supplies and power cables"),
    ("heat (hardware)", "heat", "it is too hot and halves its clocks", "check fans, air flow and room temperature"),
    ("heat (software)", "heat", "it is hot and lowers its clocks", "check fans, air flow and room temperature"),
    ("hardware slowdown", "slowdown", "its hardware lowers the clocks", "check cooling and power supply"),
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a GPU."""

    code: str
    """Stable name, for example rows_failed or xid_79."""
    status: Status
    message: str
    action: str
    """What to do about it."""
    source: str
    """Whose rule this is."""


@dataclass(frozen=True)
class Verdict:
    """Whether one GPU (or MIG instance) is fit to be used: the gravest of its findings."""

    uuid: str
    status: Status
    findings: tuple[Finding, ...] = ()

    @property
    def reason(self) -> str:
        """The gravest findings in one line; empty where there is none."""
        return "; ".join(finding.message for finding in self.findings if finding.status == self.status)


def judge(
    facts: HealthFacts,
    sample: GpuSample | None = None,
    xids: Sequence[Xid] = (),
    before: HealthFacts | None = None,
) -> Verdict:
    """Pure: the verdict on one GPU; fail: it is not to be used, warn: it works and needs care.

    `xids` may hold those of other GPUs. `before` is an earlier look at the same GPU, without which counters of
    repeated transfers say nothing: they may be old. What the driver does not tell is never a finding.
    """
    findings = [
        *_presence(facts),
        *_ecc(facts),
        *_rows(facts),
        *_pages(facts),
        *_nvlinks(facts, before),
        *_pcie(facts, sample, before),
        *_throttling(sample),
        *_xids(facts, xids),
    ]
    return verdict_of(facts.uuid, [*findings, *_recovery(facts, findings)])


def verdict_of(uuid: str, findings: Iterable[Finding]) -> Verdict:
    """Pure: the verdict that these findings come to, the gravest first."""
    ordered = sorted(findings, key=lambda finding: -_GRAVITY[finding.status])
    return Verdict(uuid, ordered[0].status if ordered else "ok", tuple(ordered))


def read_verdicts(nvml: Any = None, limit_s: float = INIT_LIMIT_S, log: Log | None = None) -> dict[str, Verdict]:
    """Verdicts on every GPU and MIG instance of the machine, by UUID, from counters, state and the kernel's log.

    Empty where there is no driver, or where it does not answer within limit_s seconds. `nvml` and `log` stand in for
    pynvml and the kernel's log in tests.
    """
    from drumline.hardware.kernel_log import log_of
    from drumline.hardware.session import open_session, within

    def see() -> tuple[tuple[HealthFacts, ...], tuple[GpuSample, ...]]:
        with open_session(nvml) as session:
            return look(session)

    answer = within(limit_s, see, nvml)
    if isinstance(answer, Unavailable) or not answer[0]:
        return {}
    facts, samples = answer
    xids, _ = (log or log_of(nvml))(time.time() - XID_AGE_S)
    return verdicts(facts, samples, xids)


def look(session: Session) -> tuple[tuple[HealthFacts, ...], tuple[GpuSample, ...]]:
    """What `verdicts` needs, from one session, in one go."""
    from drumline.hardware.sample import take

    return read_health(session), take(session).gpus


def verdicts(
    facts: Sequence[HealthFacts],
    samples: Sequence[GpuSample],
    xids: Sequence[Xid] = (),
    before: Sequence[HealthFacts] = (),
) -> dict[str, Verdict]:
    """Pure: verdicts by UUID; a MIG instance has its GPU's."""
    by_uuid = {sample.gpu.uuid: sample for sample in samples}
    earlier = {one.uuid: one for one in before}
    found = {one.uuid: judge(one, by_uuid.get(one.uuid), xids, earlier.get(one.uuid)) for one in facts}
    for sample in samples:
        if sample.gpu.parent in found:
            found[sample.gpu.uuid] = replace(found[sample.gpu.parent], uuid=sample.gpu.uuid)
    return found


def _presence(facts: HealthFacts) -> Iterator[Finding]:
    if facts.lost:
        yield Finding("lost", "fail", facts.lost, f"{_RESET}; if it comes back, {_VENDOR}", SOURCE)


def _ecc(facts: HealthFacts) -> Iterator[Finding]:
    now, ever = facts.ecc_uncorrected or 0, facts.ecc_uncorrected_ever or 0
    if now:
        message = f"{now} uncorrectable ECC error(s) since the driver was loaded"
        yield Finding("ecc_uncorrected", "fail", message, f"{_RESET}; if they come back, {_VENDOR}", _DCGM)
    elif ever:
        message = f"{ever} uncorrectable ECC error(s) in the past, none since the driver was loaded"
        yield Finding("ecc_uncorrected_ever", "warn", message, f"nothing now; if they come back, {_VENDOR}", _DCGM)
    if facts.sram_threshold_exceeded:
        message = "its on-chip memory had more uncorrectable errors than are tolerated"
        yield Finding("sram_threshold", "fail", message, f"{_VENDOR}: it qualifies for replacement", _MEMORY_GUIDE)


def _rows(facts: HealthFacts) -> Iterator[Finding]:
    if facts.rows_failed:
        message = "a row of its memory could not be replaced"
        yield Finding("rows_failed", "fail", message, f"{_VENDOR}: it qualifies for replacement", _MEMORY_GUIDE)
    if facts.rows_pending:
        # The guide: later work is not affected, since the pages in question are out of use.
        message = "rows of its memory wait for a reset to be replaced"
        yield Finding("rows_pending", "warn", message, f"{_RESET} when that is convenient", _MEMORY_GUIDE)


def _pages(facts: HealthFacts) -> Iterator[Finding]:
    pages, uncorrected = facts.pages_retired or 0, facts.pages_retired_uncorrected or 0
    if pages >= MAX_RETIRED_PAGES:
        message = f"{pages} pages of its memory are out of use, {MAX_RETIRED_PAGES} are the most"
        yield Finding("pages_retired", "fail", message, f"{_VENDOR}: it qualifies for replacement", _DCGM)
    elif uncorrected > MANY_RETIRED_PAGES:
        message = f"{uncorrected} pages of its memory are out of use for uncorrectable errors"
        yield Finding("pages_retired", "warn", message, f"nothing now; if they become more, {_VENDOR}", _DCGM)
    if facts.pages_pending:
        message = "pages of its memory wait for a reset to be taken out of use"
        yield Finding("pages_pending", "warn", message, f"{_RESET} when that is convenient", _PAGES_GUIDE)


def _nvlinks(facts: HealthFacts, before: HealthFacts | None) -> Iterator[Finding]:
    up, peers = facts.nvlinks_up, facts.nvlinks_up_of_peers
    earlier = None if before is None else before.nvlinks_up
    expected = max(peers or 0, earlier or 0)
    # How many links are wired differs between boards, so that the GPU's own past and its like are the measure.
    if up is not None and up < expected:
        # With none up it can be used as a GPU without NVLink; with some, transfers over the dead ones fail.
        status: Status = "warn" if up == 0 and not earlier else "fail"
        action = f"see nvidia-smi nvlink -s; check the bridges or the fabric manager; {_RESET}"
        yield Finding("nvlink_down", status, f"{up} of {expected} NVLinks are up", action, _DCGM)
    if before is None:
        return
    seconds = max(1.0, facts.time - before.time)
    crc = _grown(facts.nvlink_crc_errors, before.nvlink_crc_errors)
    action = f"see nvidia-smi nvlink -e; if they go on, {_RESET}, then have the links checked"
    if crc / seconds >= MAX_NVLINK_CRC_PER_S:
        yield Finding("nvlink_errors", "fail", f"{crc / seconds:.0f} NVLink checksum errors/s", action, _DCGM)
        return
    # DCGM calls one of them a failure; the data arrived in the end, so that work may go on.
    again = _grown(facts.nvlink_replays, before.nvlink_replays)
    trained = _grown(facts.nvlink_recoveries, before.nvlink_recoveries)
    if again or trained:
        message = f"NVLink repeated {again} transfer(s) and recovered {trained} time(s) within {seconds:.0f} s"
        yield Finding("nvlink_errors", "warn", message, action, _DCGM)


def _pcie(facts: HealthFacts, sample: GpuSample | None, before: HealthFacts | None) -> Iterator[Finding]:
    if before is not None:
        minutes = max(1.0, (facts.time - before.time) / 60)
        replays = _grown(facts.pcie_replays, before.pcie_replays)
        if replays > MAX_PCIE_REPLAYS_PER_MINUTE * minutes:
            action = f"check that the GPU and its riser sit firmly; if it goes on, {_VENDOR}"
            yield Finding("pcie_replays", "warn", f"{replays / minutes:.0f} PCIe replays a minute", action, _DCGM)
    # An idle GPU lowers the link's generation to save power, and that is no fault; its width stays.
    width, full = (None, None) if sample is None else (sample.pcie_width, sample.max_pcie_width)
    if width and full and width < full:
        action = "check that the GPU and its riser sit firmly, and the slot's settings in the BIOS"
        yield Finding("pcie_width", "warn", f"its PCIe link has {width} of {full} lanes", action, _NVML)


def _throttling(sample: GpuSample | None) -> Iterator[Finding]:
    """The most exact cause alone: the hardware reports a general slowdown beside it."""
    for word, code, what, action in _THROTTLES:
        if sample is not None and word in (sample.throttled_by or ()):
            yield Finding(f"throttled_{code}", "warn", f"slowed down: {what}", action, _NVML)
            return


def _xids(facts: HealthFacts, xids: Sequence[Xid]) -> Iterator[Finding]:
    latest: dict[int, Xid] = {}
    times: dict[int, int] = {}
    for xid in sorted(xids, key=lambda xid: xid.time):
        if xid.uuid == facts.uuid or (xid.uuid is None and xid.pci_address and xid.pci_address == facts.pci_address):
            latest[xid.code] = xid
            times[xid.code] = times.get(xid.code, 0) + 1
    for code, xid in latest.items():
        told = meaning(code, xid.text)
        if told.status == "ok":
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(xid.time))
        count = f", {times[code]} times, last" if times[code] > 1 else ""
        message, status, action = f"XID {code}{count} at {when}: {told.title}", told.status, told.action
        if _dealt_with(facts, xid) and status == "fail":
            message += "; the driver says that nothing is left to do"
            status, action = "warn", f"nothing now; if it comes back, {_VENDOR}"
        yield Finding(f"xid_{code}", status, message, action, told.source)


def _dealt_with(facts: HealthFacts, xid: Xid) -> bool:
    """Whether a later answer of the driver says that the GPU was reset since; an event is of this very moment."""
    later = xid.origin == "kernel log" and facts.time > xid.time
    return later and facts.recovery_action == NO_RECOVERY and xid.code in RECOVERY_TOLD


def _recovery(facts: HealthFacts, others: Sequence[Finding]) -> Iterator[Finding]:
    """What the driver itself wants done, where no other finding is the reason for it."""
    action = facts.recovery_action
    if action is None or action == NO_RECOVERY:
        return
    # "Drain" actions let programs that run go on.
    status: Status = "fail" if action.startswith(("reset", "restart", "recover")) else "warn"
    if not any(_GRAVITY[other.status] >= _GRAVITY[status] for other in others):
        yield Finding("recovery_action", status, f"the driver asks: {action}", action, _NVML)


def _grown(now: int | None, before: int | None) -> int:
    """By how much a counter grew; 0 where it is not known or began anew."""
    return 0 if now is None or before is None else max(0, now - before)
