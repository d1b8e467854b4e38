"""Processes that run on although their job has ended: another machine gave it up, or its end was not seen through."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from drumline.jobs.adoption import end_marked, marks
from drumline.jobs.records import Inventory, Job

if TYPE_CHECKING:
    from drumline.jobs.store import Store

logger = logging.getLogger("drumline")

WAIT_S = 0.2
"""How long one look waits for processes that it killed; the next one goes on."""


def left_processes(store: Store, node: str) -> Iterator[tuple[Job, str, list[int]]]:
    """Jobs of this machine that have ended, each with a mark and the living processes that have it.

    Those of jobs that this store does not know are others'.
    """
    for mark, pids in sorted(marks().items()):
        job = store.jobs.get(mark.partition("/")[0])
        if job is not None and job.has_ended and job.node == node:
            yield job, mark, pids


class Leftovers:
    """What is left of ended jobs on the machine of one supervisor."""

    def __init__(self, store: Store, node: str) -> None:
        self._store = store
        self._node = node
        self._told: set[str] = set()
        self._may_be = True
        """There may be some: at the start, and after the end of a job that somebody else saw."""
        self.devices: frozenset[str] = frozenset()
        """Those of jobs whose processes were killed and have not gone yet."""

    def expect(self) -> None:
        """Look for them the next time."""
        self._may_be = True

    def end(self) -> list[Job]:
        """Kill them, where there may be any; returns their jobs."""
        if not self._may_be:
            return []
        ended: list[Job] = []
        stuck: list[Job] = []
        for job, mark, pids in left_processes(self._store, self._node):
            if mark not in self._told:
                self._told.add(mark)
                logger.warning("%s is %s and pids %s of it run on: they are killed", job.id, job.state, pids)
            if end_marked(mark, WAIT_S):
                stuck.append(job)
            ended.append(job)
        self._may_be = bool(stuck)
        self.devices = frozenset(device for job in stuck for device in job.devices)
        return ended

    def without_theirs(self, inventory: Inventory) -> Inventory:
        """The inventory, `devices` of it unusable: they are given on once those processes have gone."""
        why = "processes of an ended job still run on it"
        devices = (replace(each, unusable=why) if each.id in self.devices else each for each in inventory.devices)
        return replace(inventory, devices=tuple(devices)) if self.devices else inventory
