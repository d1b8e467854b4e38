"""The health of this machine's GPUs, looked at again and again by one that remembers the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drumline.hardware.health import Verdict, look, verdicts
from drumline.hardware.health_facts import HealthFacts
from drumline.hardware.kernel_log import read_xids
from drumline.hardware.records import GpuSample
from drumline.hardware.session import open_session
from drumline.hardware.waiting import Unavailable, within
from drumline.hardware.xid_events import XidListener
from drumline.hardware.xids import Xid

LIMIT_S = 5.0
"""For one look at all counters."""
WINDOW_S = 60.0
"""What counters are compared over: limits such as PCIe replays are by the minute."""
MOST_XIDS = 1000
XID_AGE_S = 3600.0
"""How long an XID that came during the watch is held against a GPU; a reset leaves no mark."""
LOG_AGAIN_S = 300.0
"""When a kernel log that could not be read is tried again: each time may start programs."""
SAME_S = 60.0
"""How far the times of an event and of its line in the kernel's log may lie apart."""


@dataclass(frozen=True)
class Health:
    """What one look has found."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By UUID; empty where the driver gave none."""
    xids: tuple[Xid, ...] = ()
    """Those of the last hour that came since the watch began, oldest first."""
    late: bool = False
    """Whether the driver did not answer in time, or was not asked yet: then missing verdicts mean nothing."""

    def xids_of(self, uuid: str, parent: str | None = None) -> list[Xid]:
        """Of one GPU; parent: of a MIG instance, the GPU that it is a part of."""
        return [xid for xid in self.xids if xid.uuid is not None and xid.uuid in (uuid, parent)]


class HealthWatch:
    """Calling it looks: counters against those of a minute ago, XIDs as events, else from the kernel's log."""

    def __init__(self, nvml: Any = None, listener: XidListener | None = None) -> None:
        """nvml: stands in for pynvml in tests, and listener for the one that is made of it."""
        self._session = open_session(nvml)
        self.listener = (listener or XidListener(nvml)).start()
        self._looks: deque[tuple[HealthFacts, ...]] = deque()
        self.heard: deque[Xid] = deque(maxlen=MOST_XIDS)
        self._read_until = time.time()
        self._log_due = 0.0
        self._most_up: dict[str, int] = {}
        self._uuids: dict[str, str] = {}

    def __call__(self) -> Health:
        """One look; a driver that does not answer in time leaves what XIDs tell."""
        looked = within(LIMIT_S, self._look, self._session.nvml)
        self._hear()
        if isinstance(looked, Unavailable):
            return Health(xids=tuple(self.heard), late=True)
        facts, samples = looked
        before = self._looks[0] if self._looks else ()
        # A link that died stays dead, however long ago that was.
        before = tuple(replace(one, nvlinks_up=self._most_up.get(one.uuid)) for one in before)
        found = verdicts(facts, samples, tuple(self.heard), before)
        if facts:
            self._looks.append(facts)
        for one in facts:
            if one.nvlinks_up is not None:
                self._most_up[one.uuid] = max(one.nvlinks_up, self._most_up.get(one.uuid, 0))
        while len(self._looks) > 1 and self._looks[-1][0].time - self._looks[1][0].time >= WINDOW_S:
            self._looks.popleft()
        return Health(found, tuple(self.heard))

    def _look(self) -> tuple[tuple[HealthFacts, ...], tuple[GpuSample, ...]]:
        facts, samples = look(self._session)
        self._uuids |= {one.pci_address: one.uuid for one in facts if one.pci_address is not None}
        return facts, samples

    def _hear(self) -> None:
        """Take in new XIDs, each with the UUID of its GPU where that is known, and let go of old ones."""
        now = time.time()
        heard = self.listener.drain()
        if self.listener.fault is None:
            self._read_until = now
        elif now >= self._log_due:
            heard += self._logged(heard, now)
        kept = [xid for xid in (*self.heard, *heard) if xid.time >= now - XID_AGE_S]
        self.heard = deque(kept, MOST_XIDS)

    def _logged(self, heard: Sequence[Xid], now: float) -> list[Xid]:
        """What the kernel's log has since it was last read or events came, less what was heard as an event."""
        since = self._read_until
        found, why_not = read_xids(since)
        if why_not is not None:
            self._log_due = now + LOG_AGAIN_S
            return []
        self._read_until = now
        told = {
            (xid.uuid, xid.code)
            for xid in (*self.heard, *heard)
            if xid.origin == "event" and xid.time >= since - SAME_S
        }
        known = [replace(xid, uuid=xid.uuid or self._uuids.get(xid.pci_address or "")) for xid in found]
        # What came during the reading is left to the next one, which begins at `now`.
        return [xid for xid in known if xid.time < now and (xid.uuid, xid.code) not in told]

    def close(self) -> None:
        """Give back session and listener."""
        self.listener.stop()
        self._session.close()
