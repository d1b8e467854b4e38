"""The machine's GPUs once: values, health, connections; for commands that show a still picture."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline.hardware.health import Verdict, read_verdicts
from drumline.hardware.nvml import INIT_LIMIT_S
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.sample import read_snapshot, take
from drumline.hardware.session import Session, open_session
from drumline.hardware.topology import Topology, read_topology
from drumline.hardware.waiting import Unavailable, within
from drumline.monitor.activity import activity
from drumline.monitor.scene import RATES_S, Scene

LIMIT_S = INIT_LIMIT_S
"""How long the driver may take for each part: a GPU that nobody uses, without persistence mode, is started for it."""


@dataclass(frozen=True)
class OneLook:
    """What was seen."""

    snapshot: Snapshot
    before: Snapshot
    """A moment earlier: what a GPU does shows in the difference."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """By UUID."""
    topology: Topology = field(default_factory=Topology)

    def scene(self) -> Scene:
        """As a picture."""
        earlier = {sample.gpu.uuid: sample for sample in self.before.gpus}

        def doing(sample: GpuSample) -> str:
            return activity(sample, earlier.get(sample.gpu.uuid))

        return Scene(
            self.snapshot,
            self.snapshot.time,
            socket.gethostname(),
            verdicts=self.verdicts,
            activity=doing,
            nvlinks={place.uuid: place.nvlinks for place in self.topology.places if place.nvlinks},
        )


def look_once() -> OneLook:
    """See everything; a driver that hangs is given up after LIMIT_S, with that as the reason."""
    # One session is open all the time: a GPU without users takes seconds to start, and would stop in between.
    with open_session() as session:
        looked = within(LIMIT_S + RATES_S, lambda: _two_looks(session), session.nvml)
        if isinstance(looked, Unavailable) or not (looked[1].gpus or looked[1].problems):
            snapshot = read_snapshot(limit_s=LIMIT_S)  # it asks others, or says why not
            return OneLook(snapshot, snapshot, topology=Topology(why_not=snapshot.source))
        before, snapshot = looked
        topology = within(LIMIT_S, lambda: read_topology(session), session.nvml)
        verdicts = read_verdicts(limit_s=LIMIT_S)
    if isinstance(topology, Unavailable):
        topology = Topology(why_not=topology.reason)
    return OneLook(snapshot, before, verdicts, topology)


def _two_looks(session: Session) -> tuple[Snapshot, Snapshot]:
    first = take(session)
    if not first.gpus:
        return first, first
    time.sleep(RATES_S)
    return first, take(session)
