"""How the GPUs of a machine reach each other, and which CPU cores lie next to each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.hardware.nvml import Unavailable, ask, pci_address
from drumline.hardware.records import Gpu
from drumline.hardware.session import Session

_ROOT = Path("/")
# nvml.h: nvmlGpuTopologyLevel_t, nvmlP2PStatus_t, nvmlIntNvLinkDeviceType_t.
PATHS = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one PCIe host bridge",
    40: "one NUMA node",
    50: "between NUMA nodes",
}
"""What two GPUs have in common on PCIe, by NVML's level, the nearest first."""
_PEER_READ, _PEER_WRITE, _PEER_NVLINK = 0, 1, 2
_TO_GPU, _TO_SWITCH = 0, 2
_MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_UNKNOWN_DISTANCE = 100
# Beyond so many ways to choose, the group grows by one GPU at a time; 8 of 16 are fewer.
_MOST_GROUPS = 20_000


@dataclass(frozen=True)
class Place:
    """Where one GPU sits."""

    uuid: str
    index: int
    pci_address: str | None = None
    numa_node: int | None = None
    """None where the machine has no such nodes, or does not tell."""
    cpus: tuple[int, ...] = ()
    """Cores next to it; empty where nobody tells."""
    nvlinks: int | None = None
    """Active NVLinks, wherever they lead; None where the driver does not tell."""


@dataclass(frozen=True)
class Link:
    """How two GPUs reach each other, either way."""

    a: str
    b: str
    """UUIDs."""
    nvlinks: int = 0
    """NVLinks between them: direct ones, or through NVSwitch the fewer of the two GPUs' ones."""
    level: int | None = None
    """NVML's level of what they have in common on PCIe, see PATHS; None where it does not tell."""
    peer: bool | None = None
    """Whether each may read and write the other's memory; None where the driver does not tell."""

    @property
    def distance(self) -> int:
        """The fewer the nearer: NVLink before PCIe, more links before fewer; pure."""
        if self.nvlinks:
            return 1 + _MOST_LINKS - min(self.nvlinks, _MOST_LINKS)
        return _UNKNOWN_DISTANCE if self.level is None else 1 + _MOST_LINKS + self.level

    def __str__(self) -> str:
        if self.nvlinks:
            return f"NVLink x{self.nvlinks}"
        return "unknown" if self.level is None else PATHS.get(self.level, f"level {self.level}")


@dataclass(frozen=True)
class Topology:
    """All physical GPUs of the machine and the link of each two of them."""

    places: tuple[Place, ...] = ()
    links: tuple[Link, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)
    """UUID of a MIG instance -> UUID of its GPU."""
    why_not: str | None = None
    """Why nothing is known, where nothing is."""

    def link(self, a: str, b: str) -> Link | None:
        """The link of two GPUs in either order; None where it is not known, or where they are one GPU."""
        pair = {self.parents.get(a, a), self.parents.get(b, b)}
        return next((link for link in self.links if {link.a, link.b} == pair), None)

    def distance(self, a: str, b: str) -> int:
        """0 for one GPU (or parts of it), then the fewer the nearer; an unknown pair is farthest."""
        if self.parents.get(a, a) == self.parents.get(b, b):
            return 0
        link = self.link(a, b)
        return _UNKNOWN_DISTANCE if link is None else link.distance

    def best_group(self, uuids: Sequence[str], count: int) -> tuple[str, ...]:
        """Of these GPUs so many that are best connected, in the order given; all of them where there are no more.

        A ring is as fast as its slowest link, so that the worst distance counts first, then the sum of all. Equals are
        settled by the order given.
        """
        if count >= len(uuids):
            return tuple(uuids)
        if count < 2:
            return tuple(uuids[:count])
        far = {frozenset(pair): self.distance(*pair) for pair in itertools.combinations(uuids, 2)}
        if _ways(len(uuids), count) <= _MOST_GROUPS:
            return min(itertools.combinations(uuids, count), key=lambda group: _cost(far, group))
        return min((_grown(far, uuids, first, count) for first in uuids), key=lambda group: _cost(far, group))


def read_topology(session: Session, root: Path = _ROOT) -> Topology:
    """What NVML and /sys tell of the links between all GPUs of the machine; `root` holds sys/ in tests.

    A question that is refused leaves its part unknown.
    """
    found = session.devices()
    if session.fault is not None:
        return Topology(why_not=session.fault.reason)
    parents = {gpu.uuid: gpu.parent for gpu, _ in found if gpu.parent is not None}
    whole = [(gpu, handle) for gpu, handle in found if gpu.parent is None]
    nvml = session.nvml
    wires = {gpu.uuid: _read_nvlinks(nvml, handle) for gpu, handle in whole}
    places = tuple(_place(nvml, gpu, handle, wires[gpu.uuid], root) for gpu, handle in whole)
    links = tuple(_link(nvml, one, other, wires) for one, other in itertools.combinations(whole, 2))
    return Topology(places, links, parents)


@dataclass(frozen=True)
class _Wires:
    """Active NVLinks of one GPU by where they lead."""

    to_address: Mapping[str, int]
    to_switches: int
    active: int | None
    """None where the driver does not tell, as of a GPU without any."""

    @property
    def unresolved(self) -> int:
        """Active ones of which the driver does not tell where they lead, as in some virtual machines."""
        return (self.active or 0) - self.to_switches - sum(self.to_address.values())


def _read_nvlinks(nvml: Any, handle: Any) -> _Wires:
    to_address: dict[str, int] = {}
    to_switches, active = 0, 0
    for number in range(_MOST_LINKS):
        state = ask(nvml, "nvmlDeviceGetNvLinkState", handle, number)
        if isinstance(state, Unavailable):
            if number == 0:
                return _Wires({}, 0, None)
            break  # as many links as this GPU has
        if not state:
            continue
        active += 1
        kind = ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
        if kind == _TO_SWITCH:
            to_switches += 1
        elif kind == _TO_GPU or isinstance(kind, Unavailable):
            remote = ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
            if not isinstance(remote, Unavailable):
                address = pci_address(str(remote.busId))
                to_address[address] = to_address.get(address, 0) + 1
    return _Wires(to_address, to_switches, active)


def _link(nvml: Any, one: tuple[Gpu, Any], other: tuple[Gpu, Any], wires: Mapping[str, _Wires]) -> Link:
    (a, handle_a), (b, handle_b) = one, other
    direct = wires[a.uuid].to_address.get(b.pci_address or "", 0)
    through_switches = min(wires[a.uuid].to_switches, wires[b.uuid].to_switches)
    unresolved = min(wires[a.uuid].unresolved, wires[b.uuid].unresolved)
    if unresolved and ask(nvml, "nvmlDeviceGetP2PStatus", handle_a, handle_b, _PEER_NVLINK) != 0:
        unresolved = 0
    level = ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", handle_a, handle_b)
    return Link(
        a.uuid,
        b.uuid,
        nvlinks=direct or through_switches or unresolved,
        level=None if isinstance(level, Unavailable) else int(level),
        peer=_peer(nvml, handle_a, handle_b),
    )


def _peer(nvml: Any, a: Any, b: Any) -> bool | None:
    answers = [
        ask(nvml, "nvmlDeviceGetP2PStatus", *pair, what)
        for pair in ((a, b), (b, a))
        for what in (_PEER_READ, _PEER_WRITE)
    ]
    if any(isinstance(answer, Unavailable) for answer in answers):
        return None
    return not any(answers)  # 0 is "OK", anything else says why not


def _place(nvml: Any, gpu: Gpu, handle: Any, wires: _Wires, root: Path) -> Place:
    folder = root / "sys/bus/pci/devices" / (gpu.pci_address or "unknown")
    node = _read(folder / "numa_node")
    # -1: the firmware tells of no nodes.
    numa_node = int(node) if node is not None and node.isdecimal() else None
    if node is None:
        answer = ask(nvml, "nvmlDeviceGetNumaNodeId", handle)
        numa_node = None if isinstance(answer, Unavailable) else int(answer)
    listed = _read(folder / "local_cpulist")
    cpus = cpu_list(listed) if listed else _affinity(nvml, handle)
    return Place(gpu.uuid, gpu.index, gpu.pci_address, numa_node, cpus, wires.active)


def _affinity(nvml: Any, handle: Any) -> tuple[int, ...]:
    """NVML's mask of cores, in words of 64 bits."""
    words = ask(nvml, "nvmlDeviceGetCpuAffinity", handle, 16)
    if isinstance(words, Unavailable):
        return ()
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)


def cpu_list(text: str) -> tuple[int, ...]:
    """Pure: the numbers of a kernel's list ('0-3,8,10-11')."""
    ends = [part.split("-") for part in text.split(",") if part.strip()]
    return tuple(number for part in ends for number in range(int(part[0]), int(part[-1]) + 1))


def _ways(total: int, count: int) -> int:
    ways = 1
    for step in range(min(count, total - count)):
        ways = ways * (total - step) // (step + 1)
    return ways


def _cost(far: Mapping[frozenset[str], int], group: Sequence[str]) -> tuple[int, int]:
    distances = [far[frozenset(pair)] for pair in itertools.combinations(group, 2)]
    return max(distances), sum(distances)


def _grown(far: Mapping[frozenset[str], int], uuids: Sequence[str], first: str, count: int) -> tuple[str, ...]:
    """A group that begins with one GPU and takes the nearest to all of its own next, in the order of `uuids`."""
    group = [first]
    while len(group) < count:
        rest = [uuid for uuid in uuids if uuid not in group]
        group.append(min(rest, key=lambda uuid: _cost(far, [*group, uuid])))
    return tuple(uuid for uuid in uuids if uuid in group)


def rows(topology: Topology) -> Iterator[tuple[str, ...]]:
    """Pure: a table for people: a row a GPU with its links to all others, its NUMA node and its cores."""
    for place in topology.places:
        cells = []
        for other in topology.places:
            link = topology.link(place.uuid, other.uuid)
            cells.append("-" if place is other else "unknown" if link is None else str(link))
        node = "-" if place.numa_node is None else str(place.numa_node)
        yield (f"GPU {place.index}", *cells, node, ranges(place.cpus))


def ranges(numbers: Sequence[int]) -> str:
    """Pure: '0-3,8' for 0, 1, 2, 3, 8; '-' for none."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts) or "-"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
