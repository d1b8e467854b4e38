"""Locks and threads do not survive a fork: what holds some is told in the child, and makes them anew."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something with locks or threads of its own."""

    def renew(self) -> None:
        """Make locks anew and forget threads.

        Called in a forked child, which has neither the threads nor whoever held a lock at that moment.
        """


_alive: WeakSet[Renewable] = WeakSet()


def renew_after_fork(item: Renewable) -> None:
    """Have `item.renew()` called in every child that this process forks, as long as `item` is in use."""
    _alive.add(item)


def _renew_all() -> None:
    for item in list(_alive):
        item.renew()


os.register_at_fork(after_in_child=_renew_all)
