"""Network interfaces, and which of them NCCL would talk over."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Interface:
    """One interface that has an IP address."""

    name: str
    up: bool
    loopback: bool
    addresses: tuple[str, ...]
    speed_mbit: int | None
    """None where the system does not know."""


def list_interfaces() -> tuple[Interface, ...]:
    """The interfaces of this host that have an IP address, in the system's order; no hardware addresses."""
    stats = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        addresses = tuple(e.address for e in entries if e.family in (socket.AF_INET, socket.AF_INET6))
        if not addresses:
            continue
        state = stats.get(name)
        flags = state.flags.split(",") if state else []
        loopback = "loopback" in flags or name.startswith("lo")
        found.append(Interface(name, bool(state and state.isup), loopback, addresses, (state and state.speed) or None))
    return tuple(found)


def nccl_interface(interfaces: Sequence[Interface], setting: str | None) -> tuple[str | None, str]:
    """Pure: the interface that NCCL's sockets would take first, and why; None where none fits.

    Source: NCCL's user guide, NCCL_SOCKET_IFNAME. A setting is a list of prefixes; `=` asks for whole names, `^` leaves
    out. Without one NCCL prefers InfiniBand's, then what is neither Docker's nor loopback, then these.
    """
    up = [interface for interface in interfaces if interface.up]
    if setting:
        for interface in up:
            if _matches(interface.name, setting):
                return interface.name, f"NCCL_SOCKET_IFNAME={setting}"
        return None, f"NCCL_SOCKET_IFNAME={setting} fits no interface that is up"
    outer = [i for i in up if not i.loopback and not i.name.startswith("docker")]
    ranks = (
        ([i for i in outer if i.name.startswith("ib")], "the first that is InfiniBand's"),
        (outer, "the first that is up and neither loopback nor Docker's"),
        ([i for i in up if not i.loopback], "only Docker's is up"),
        (up, "only loopback is up: this host reaches no other"),
    )
    return next(((found[0].name, why) for found, why in ranks if found), (None, "no interface is up"))


def _matches(name: str, setting: str) -> bool:
    inverted = setting.startswith("^")
    rest = setting.removeprefix("^")
    exact = rest.startswith("=")
    wanted = [part for part in rest.removeprefix("=").split(",") if part]
    hit = name in wanted if exact else any(name.startswith(part) for part in wanted)
    return hit != inverted
