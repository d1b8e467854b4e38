"""What is new in the health of a run's GPUs from one look to the next: XIDs, and GPUs that have turned sick. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from drumline.hardware.xids import Xid, meaning
from drumline.launcher.recording import GPU_SICK
from drumline.monitor.health_watch import Health


class HealthNews:
    """Tells everything once."""

    def __init__(self, gpus: Collection[str]) -> None:
        """gpus: UUIDs of the run's."""
        self._gpus = gpus
        self._told: set[Xid] = set()
        self._sick: dict[str, frozenset[str]] | None = None

    def of(self, health: Health, parents: Collection[str] = ()) -> list[dict[str, Any]]:
        """Events `xid` and `gpu_sick` as events.jsonl holds them.

        parents: GPUs that MIG instances of the run are parts of. What is found at the first look has not turned sick:
        the run was started in spite of it, and a restart would find it again.
        """
        return [*self._xids(health, parents), *self._turned_sick(health)]

    def _xids(self, health: Health, parents: Collection[str]) -> Iterator[dict[str, Any]]:
        self._told &= set(health.xids)
        for xid in health.xids:
            ours = xid.uuid is None or xid.uuid in self._gpus or xid.uuid in parents
            if ours and xid not in self._told:
                self._told.add(xid)
                told = meaning(xid.code, xid.text)
                facts = {"code": xid.code, "status": told.status, "message": told.title, "text": xid.text}
                yield {"event": "xid", "gpu": xid.uuid, **facts}

    def _turned_sick(self, health: Health) -> Iterator[dict[str, Any]]:
        verdicts = {uuid: health.verdicts[uuid] for uuid in self._gpus if uuid in health.verdicts}
        if not verdicts:
            return
        sick = {
            uuid: frozenset(finding.code for finding in verdict.findings if finding.status == "fail")
            for uuid, verdict in verdicts.items()
        }
        is_first, before = self._sick is None and not self._told, self._sick or {}
        self._sick = before | sick
        for uuid, codes in sick.items():
            if not is_first and codes - before.get(uuid, frozenset()):
                yield {"event": GPU_SICK, "gpu": uuid, "message": verdicts[uuid].reason}
