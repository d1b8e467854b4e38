"""Keys and logins that were refused, for the audit log: counted, so that who tries many cannot fill the disk."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

EVERY_S = 60.0
"""Of one address and kind there is one entry in this time."""
MOST = 20
"""Addresses with entries of their own in that time; all others share one."""
OTHERS = "other addresses"

Kind = Literal["key_refused", "login_refused"]
Write = Callable[[str, str, str, float], None]


@dataclass
class _Counted:
    since: float
    """When its last entry was written."""
    number: int = 0
    """Refused since then, which no entry tells yet."""
    what: str = ""
    """The last of them."""


class Refusals:
    """The first of an address is written at once; those of the minute after it are one more entry, with their number.

    That entry is written with the next refusal, whosever it is, when the log is read, or at the end.
    """

    def __init__(self, write: Write, clock: Callable[[], float]) -> None:
        """write: event, who, what and when, as Log.audit. clock: seconds since 1970."""
        self._write = write
        self._clock = clock
        self._counted: dict[tuple[str, Kind], _Counted] = {}
        self._lock = threading.Lock()

    def count(self, address: str | None, event: Kind, what: str) -> None:
        """Note a refusal. what: the id of a key that is known, or that it is none; never the key. Raises StoreError."""
        self.write_due()
        with self._lock:
            own = (_network_of(address), event)
            name = own if own in self._counted or len(self._counted) < MOST else (OTHERS, event)
            found = self._counted.get(name)
            if found is not None:
                found.number += 1
                found.what = what
                return
            now = self._clock()
            self._counted[name] = _Counted(now)
        self._write(event, f"nobody ({name[0]})", what, now)

    def write_due(self, *, all_of_them: bool = False) -> None:
        """Write what was counted longer than EVERY_S ago, or all of it. Raises StoreError."""
        now, due = self._clock(), []
        with self._lock:
            for name, counted in list(self._counted.items()):
                # A clock that was set back makes it due.
                if not all_of_them and 0 <= now - counted.since < EVERY_S:
                    continue
                if counted.number:
                    due.append((name, counted.number, counted.what))
                    self._counted[name] = _Counted(now)
                else:
                    del self._counted[name]
        for (address, event), number, what in due:
            self._write(event, f"nobody ({address})", f"{what}, the last of {number} more", now)


def _network_of(address: str | None) -> str:
    """An address; of IPv6 the network of one customer, who has as many addresses as one likes."""
    if address is None:
        return "local"
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.ip_network((int(known) >> 64 << 64, 64)))
