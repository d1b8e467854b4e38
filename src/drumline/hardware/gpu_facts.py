"""What `doctor` tells of the GPUs beyond their names: health, XIDs, topology, who computes on them. JSON-ready."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from drumline.hardware.health import XID_AGE_S, look, verdicts
from drumline.hardware.health_facts import HealthFacts
from drumline.hardware.kernel_log import Log, log_of
from drumline.hardware.occupants import num_own_users, occupants, without_own
from drumline.hardware.records import GpuSample
from drumline.hardware.session import open_session
from drumline.hardware.topology import Topology, ranges, read_topology, rows
from drumline.hardware.waiting import Unavailable, within
from drumline.hardware.xids import Xid, meaning

LIMIT_S = 20.0
"""Longest wait for the driver: `doctor` is asked when something is slow already."""


def gpu_facts(nvml: Any = None, log: Log | None = None) -> dict[str, Any]:
    """`health` (by GPU: verdict, counters, processes, who takes it), `xids`, `kernel_log`, `topology`, `gpu_silence`.

    `kernel_log` says why it cannot be read, `gpu_silence` why the rest is not known; None where nothing is in the way.
    `nvml` and `log` stand in for pynvml and the kernel's log in tests.
    """

    def see() -> Unavailable | tuple[tuple[HealthFacts, ...], tuple[GpuSample, ...], Topology]:
        with open_session(nvml) as session:
            return session.fault or (*look(session), read_topology(session))

    seen = within(LIMIT_S, see, nvml)
    if isinstance(seen, Unavailable):
        return _told([], [], None, None, seen.reason)
    facts, samples, topology = seen
    if not facts:
        return _told([], [], None, None, None)
    xids, why_not = (log or log_of(nvml))(time.time() - XID_AGE_S)
    return _told(list(_health(facts, samples, xids)), _xids(xids, facts), why_not, _topology(topology), None)


def _told(health: list[Any], xids: list[Any], log: str | None, topology: Any, silence: str | None) -> dict[str, Any]:
    return {"health": health, "xids": xids, "kernel_log": log, "topology": topology, "gpu_silence": silence}


def _health(facts: Iterable[HealthFacts], samples: tuple[GpuSample, ...], xids: list[Xid]) -> Iterable[dict[str, Any]]:
    told = {one.uuid: one for one in facts}
    seen = {sample.gpu.uuid: sample for sample in samples}
    own = num_own_users(sys.modules)
    for uuid, verdict in verdicts(tuple(told.values()), samples, xids).items():
        sample = seen.get(uuid)
        yield {
            **asdict(verdict),
            "counters": asdict(told[uuid]) if uuid in told else None,
            "taken": occupants(without_own(sample, own)) if sample else None,
            "processes": [asdict(process) for process in (sample.processes if sample else None) or ()],
        }


def _xids(xids: Iterable[Xid], facts: Iterable[HealthFacts]) -> list[dict[str, Any]]:
    """Each with its meaning, and with its GPU's UUID where the log has only the address."""
    uuids = {one.pci_address: one.uuid for one in facts if one.pci_address}
    found = []
    for xid in xids:
        told = meaning(xid.code, xid.text)
        uuid = xid.uuid or uuids.get(xid.pci_address or "")
        found.append(asdict(xid) | {"uuid": uuid, "title": told.title, "status": told.status, "action": told.action})
    return found


def _topology(topology: Topology) -> dict[str, Any]:
    return {
        "places": [asdict(place) | {"cpus": ranges(place.cpus)} for place in topology.places],
        "links": [asdict(link) | {"text": str(link)} for link in topology.links],
        "table": [list(row) for row in rows(topology)],
    }
