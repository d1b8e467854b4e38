"""The health of this machine's GPUs, looked at again and again by one that remembers the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Health:
    """What one look has found."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By UUID; empty where the driver gave none."""
    xids: tuple[Xid, ...] = ()
    """Those of the last hour that came since the watch began, oldest first."""

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
        self._uuids: dict[str, str] = {}

    def __call__(self) -> Health:
        """One look; a driver that does not answer in time leaves what XIDs tell."""
        looked = within(LIMIT_S, self._look, self._session.nvml)
        self._hear()
        if isinstance(looked, Unavailable):
            return Health(xids=tuple(self.heard))
        facts, samples = looked
        found = verdicts(facts, samples, tuple(self.heard), self._looks[0] if self._looks else ())
        if facts:
            self._looks.append(facts)
        while len(self._looks) > 1 and self._looks[-1][0].time - self._looks[1][0].time >= WINDOW_S:
            self._looks.popleft()
        return Health(found, tuple(self.heard))

    def _look(self) -> tuple[tuple[HealthFacts, ...], tuple[GpuSample, ...]]:
        facts, samples = look(self._session)
        self._uuids |= {one.pci_address: one.uuid for one in facts if one.pci_address is not None}
        return facts, samples

    def _hear(self) -> None:
        """Take in new XIDs, each with the UUID of its GPU where that is known, and let go of old ones."""
        heard = self.listener.drain()
        now = time.time()
        if self.listener.fault is not None:
            heard += read_xids(self._read_until)[0]
            self._read_until = now
        for xid in heard:
            self.heard.append(xid if xid.uuid else replace(xid, uuid=self._uuids.get(xid.pci_address or "")))
        while self.heard and self.heard[0].time < now - XID_AGE_S:
            self.heard.popleft()

    def close(self) -> None:
        """Give back session and listener."""
        self.listener.stop()
        self._session.close()
